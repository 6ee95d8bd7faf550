"""The tensor side of a step: the batch that a model reads and the pool that its KV lives in."""

from ramet.runtime.forward.batch import AttentionPlan, AttentionSpec, ForwardBatch
from ramet.runtime.forward.host_staging import HostStaging, device_copy
from ramet.runtime.forward.kv_pool import DeviceKVPool, KVPool
from ramet.runtime.forward.quantized_kv_pool import KVFormat, QuantizedKVPool

__all__ = [
    "AttentionPlan",
    "AttentionSpec",
    "DeviceKVPool",
    "ForwardBatch",
    "HostStaging",
    "KVFormat",
    "KVPool",
    "QuantizedKVPool",
    "device_copy",
]
