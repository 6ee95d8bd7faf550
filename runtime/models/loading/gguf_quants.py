"""ggml's block formats, through the gguf package: the only module that imports it.

The import waits for the first GGUF file: gguf in turn imports sentencepiece and mistral_common where they are
installed, and a start from the weight cache needs none of it.
"""

from dataclasses import dataclass
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

_CHUNK_VALUES = 1 << 16
"""Values decoded at a time by one call of numpy's ufuncs. Measured with SmolLM2 (Q4_1) on one core: 0.44 s
for 2^14, 0.36 for 2^16 and 2^17, 0.52 for 2^20: the intermediate arrays have to stay in the cache. A
second thread gained nothing: the interpreter lock is taken too often between such short calls."""
_GROUP_ROWS = 16
"""gguf.quants.dequantize works on groups of this many rows."""


class GgufFormatError(Exception):
    """What is wrong with a GGUF file, without its path."""


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """A ggml type: ``block_size`` values in ``block_bytes`` bytes."""

    type_id: int
    name: str
    block_size: int
    block_bytes: int


_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}


def block_layout(type_id: int) -> BlockLayout:
    """Raises GgufFormatError for a type number that ggml does not have, or one that the gguf package
    cannot decode."""
    gguf = _gguf()
    try:
        kind = gguf.GGMLQuantizationType(type_id)
        block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError):
        raise GgufFormatError(
            f"tensor type {type_id} is unknown; upgrade the gguf package or convert the model"
        ) from None
    if kind.name not in _PLAIN:
        try:
            gguf.quants.dequantize(np.zeros((1, block_bytes), np.uint8), kind)
        except NotImplementedError:
            raise GgufFormatError(
                f"tensors of type {kind.name} cannot be decoded by the gguf package"
            ) from None
    return BlockLayout(type_id, kind.name, block_size, block_bytes)


def dequantise(raw: memoryview, layout: BlockLayout, shape: tuple[int, ...]) -> Tensor:
    """The values of ``raw`` ([num_bytes], writable) as a tensor of ``shape``.

    Float formats keep their dtype and share memory with raw; the others become float32.
    """
    if (dtype := _PLAIN.get(layout.name)) is not None:
        return torch.frombuffer(raw, dtype=dtype).reshape(shape)
    blocks = np.frombuffer(raw, np.uint8).reshape(-1, layout.block_bytes)
    out = np.empty((len(blocks), layout.block_size), np.float32)
    _decode(blocks, layout, out)
    return torch.from_numpy(out).reshape(shape)


def _decode(blocks: np.ndarray, layout: BlockLayout, out: np.ndarray) -> None:
    """blocks: [num_blocks, block_bytes] uint8; out: [num_blocks, block_size] float32, written.

    Rows are regrouped for speed only (see _CHUNK_VALUES); what is left over goes in a second call.
    """
    gguf = _gguf()
    kind = gguf.GGMLQuantizationType(layout.type_id)
    blocks_per_row = max(1, _CHUNK_VALUES // (_GROUP_ROWS * layout.block_size))
    whole = len(blocks) // blocks_per_row * blocks_per_row
    # A damaged scale may be NaN or infinite; the caller checks the values.
    with np.errstate(all="ignore"):
        for begin, end, width in ((0, whole, blocks_per_row), (whole, len(blocks), 1)):
            if begin < end:
                rows = blocks[begin:end].reshape(-1, width * layout.block_bytes)
                out[begin:end] = gguf.quants.dequantize(rows, kind).reshape(-1, layout.block_size)


def _gguf() -> ModuleType:
    import gguf

    module: ModuleType = gguf
    return module
