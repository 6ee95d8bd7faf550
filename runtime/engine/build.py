"""From an EngineConfig to an engine that is ready: the one place where the parts are put together. Imports
torch.
"""

import importlib.util
import threading
import time
from functools import partial
from pathlib import Path

import msgspec
import torch

from ramet.kernels import has_gpu_kernels, native
from ramet.runtime.attention import (
    HEAD_DIM_STEP,
    AttentionBackend,
    NativeAttentionBackend,
    TorchAttentionBackend,
)
from ramet.runtime.attention.base import GraphableAttention
from ramet.runtime.cache import EvictionPolicy, LfuEviction, PageAllocator, ProgramLruEviction, RadixCache
from ramet.runtime.engine.answer_checks import AnswerChecks
from ramet.runtime.engine.client import EngineInfo
from ramet.runtime.engine.config import EngineConfig
from ramet.runtime.engine.core import BuiltEngine, EngineCore
from ramet.runtime.engine.kv_dtype import choose_kv_dtype
from ramet.runtime.engine.threads import choose_threads
from ramet.runtime.env import environment
from ramet.runtime.executor.decode_graphs import DecodeGraphs
from ramet.runtime.executor.graphs import CudaGraphCapture
from ramet.runtime.executor.model_runner import HeadApart, ModelRunner, RunnerConfig
from ramet.runtime.executor.pool import kv_bytes_per_token, kv_pool_size
from ramet.runtime.forward import DeviceKVPool, KVFormat, QuantizedKVPool
from ramet.runtime.grammar import GrammarCompiler
from ramet.runtime.grammar.engines import LazyRouter
from ramet.runtime.grammar.guide import MaskWork
from ramet.runtime.grammar.service import JobThreads
from ramet.runtime.models.config import ModelConfig
from ramet.runtime.models.loading import LoadedModel, load_model
from ramet.runtime.models.loading.phases import Progress
from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.scheduler import Fcfs, LongestPrefixMatch, OrderingPolicy, Scheduler, SchedulerConfig
from ramet.runtime.scheduler.prompt_lookup import PromptLookup
from ramet.runtime.tokenizer import FastTokenizer, Tokenizer

NATIVE_FOLDER = "kernels"
"""Under the cache folder: the compiled CPU kernels."""
CPU_TOKENS_PER_STEP = 512
"""About half a second of prefill for a model of 135 M parameters: what a decoding request waits at most."""
DEVICE_TOKENS_PER_STEP = 8192
CPU_GUESSING_TOKENS = 16
DEVICE_GUESSING_TOKENS = 128
"""Up to so many tokens of a step, one that is guessed costs less than what it saves if it is right: SmolLM2 in
int8 on two cores took 6.9 ms for a step of one token, and 0.8 to 1.4 for each one more."""
MASK_THREADS = 2
WARMUP_PAGES = 4
"""A prefill and a decode of so much make what is made once: packed weights, compiled kernels, thread pools."""


def build_engine(config: EngineConfig, progress: Progress | None = None) -> BuiltEngine:
    """Load the model, size the KV pool and put everything together. ``progress`` hears of the loading.

    Sets the process's number of torch threads. To be called on the thread that will run the engine.

    Raises:
        ModelLoadError: the model is missing, damaged, not implemented, or does not fit the memory.
        InvalidRequestError: a setting cannot be honoured by this model or machine.
    """
    torch.set_num_threads(choose_threads(config.threads, environment().num_threads, torch.get_num_threads()))
    cache_dir = environment().cache_dir if config.cache_dir is None else Path(config.cache_dir)
    why_torch = "RAMET_NATIVE_KERNELS is off"
    if environment().native_kernels:
        why_torch = native.enable(cache_dir / NATIVE_FOLDER)
    loaded = load_model(
        config.model,
        quantization=config.quantization,
        dtype=config.dtype,
        device=config.device,
        cache_dir=cache_dir,
        progress=progress,
    )
    timings = dict(loaded.timings)
    context_length = _context_length(config, loaded.config)

    started = time.perf_counter()
    tokenizer = FastTokenizer(loaded.tokenizer_spec)
    timings["tokenizer"] = time.perf_counter() - started

    started = time.perf_counter()
    kv_dtype = choose_kv_dtype(config.kv_cache_dtype, loaded, native.library())
    num_pages = kv_pool_size(
        loaded.config,
        device=loaded.device,
        dtype=kv_dtype,
        page_size=config.page_size,
        kv_tokens=config.kv_tokens,
        memory_fraction=config.memory_fraction,
    )
    runner = _runner(config, loaded, kv_dtype, num_pages, context_length)
    wakeup = threading.Event()
    scheduler = _scheduler(config, loaded, num_pages, context_length, tokenizer, wakeup)
    timings["kv_pool"] = time.perf_counter() - started

    started = time.perf_counter()
    runner.warmup(min(WARMUP_PAGES, num_pages))
    timings["warmup"] = time.perf_counter() - started

    grammar = GrammarCompiler(LazyRouter(tokenizer), vocabulary=tokenizer, on_done=wakeup.set)
    checks = AnswerChecks(config.max_resamples, wakeup.set)
    core = EngineCore(scheduler, runner, tokenizer, grammar, seed=config.seed, wakeup=wakeup, checks=checks)
    info = _info(config, loaded, kv_dtype, num_pages, context_length, timings)
    info = msgspec.structs.replace(
        info, grammars=tuple(sorted(grammar.kinds)), kernels=_kernels(loaded.device, why_torch)
    )
    return BuiltEngine(core, info, tokenizer, loaded.tokenizer_spec)


def _context_length(config: EngineConfig, model: ModelConfig) -> int:
    if config.context_length is None:
        return model.max_positions
    if config.context_length > model.max_positions:
        raise InvalidRequestError(
            f"context_length is {config.context_length}; the model's positions end at {model.max_positions}",
            field="context_length",
        )
    return config.context_length


def _runner(
    config: EngineConfig, loaded: LoadedModel, kv_dtype: torch.dtype, num_pages: int, context_length: int
) -> ModelRunner:
    pool = _pool(loaded, kv_dtype, num_pages * config.page_size)
    sizes = RunnerConfig(
        max_running_requests=config.max_running_requests,
        max_tokens_per_request=min(context_length, num_pages * config.page_size),
        page_size=config.page_size,
    )
    attention = _attention(config, loaded, pool)
    return ModelRunner(loaded.model, attention, sizes, loaded.device, graphs=_graphs(loaded, attention, sizes))


def _pool(loaded: LoadedModel, kv_dtype: torch.dtype, num_slots: int) -> DeviceKVPool | QuantizedKVPool:
    model = loaded.config
    formats: dict[torch.dtype, KVFormat] = {torch.float8_e4m3fn: "fp8", torch.int8: "int8"}
    if kv_dtype in formats:
        return QuantizedKVPool(
            formats[kv_dtype],
            num_layers=model.num_layers,
            num_slots=num_slots,
            num_kv_heads=model.num_kv_heads,
            head_dim=model.head_dim,
            device=loaded.device,
        )
    return DeviceKVPool(
        num_layers=model.num_layers,
        num_slots=num_slots,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        dtype=kv_dtype,
        device=loaded.device,
    )


def _graphs(loaded: LoadedModel, attention: AttentionBackend, sizes: RunnerConfig) -> DecodeGraphs | None:
    """For models of our own on CUDA: what others do on the host in a step, a graph would not repeat."""
    if loaded.device.type != "cuda" or not isinstance(attention, GraphableAttention):
        return None
    if not isinstance(loaded.model, HeadApart):
        return None
    return DecodeGraphs(
        loaded.model,
        attention,
        CudaGraphCapture(loaded.device),
        loaded.device,
        max_rows=sizes.max_running_requests,
        max_pages=-(-sizes.max_tokens_per_request // sizes.page_size),
    )


def _attention(
    config: EngineConfig, loaded: LoadedModel, pool: DeviceKVPool | QuantizedKVPool
) -> AttentionBackend:
    if loaded.device.type == "cuda" and (backend := _gpu_attention(config, loaded, pool)) is not None:
        return backend
    # Eight bits are refused where those kernels are not.
    assert isinstance(pool, DeviceKVPool)
    model, library = loaded.config, native.library()
    compiled = loaded.device.type == "cpu" and loaded.dtype is torch.float32 and library is not None
    if compiled and model.head_dim % HEAD_DIM_STEP == 0:
        assert library is not None
        return NativeAttentionBackend(library, pool, page_size=config.page_size)
    return TorchAttentionBackend(
        pool,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        page_size=config.page_size,
        device=loaded.device,
    )


def _gpu_attention(
    config: EngineConfig, loaded: LoadedModel, pool: DeviceKVPool | QuantizedKVPool
) -> AttentionBackend | None:
    """The Triton kernels; None where triton is not installed, or where they do not hold the model's heads."""
    if importlib.util.find_spec("triton") is None:
        return None
    # Imported here: what needs no GPU does not load triton.
    from ramet.runtime.attention.gpu_backend import GpuAttentionBackend

    model = loaded.config
    if not GpuAttentionBackend.supports(model.num_heads, model.num_kv_heads, model.head_dim, loaded.dtype):
        return None
    return GpuAttentionBackend(
        pool,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        page_size=config.page_size,
        dtype=loaded.dtype,
        device=loaded.device,
    )


def _scheduler(
    config: EngineConfig,
    loaded: LoadedModel,
    num_pages: int,
    context_length: int,
    tokenizer: Tokenizer,
    wakeup: threading.Event,
) -> Scheduler:
    eviction: EvictionPolicy = LfuEviction() if config.eviction_policy == "lfu" else ProgramLruEviction()
    policy: OrderingPolicy = Fcfs() if config.schedule_policy == "fcfs" else LongestPrefixMatch()
    is_cpu = loaded.device.type == "cpu"
    default_budget = CPU_TOKENS_PER_STEP if is_cpu else DEVICE_TOKENS_PER_STEP
    sizes = SchedulerConfig(
        num_pages=num_pages,
        page_size=config.page_size,
        context_length=context_length,
        vocab_size=loaded.config.vocab_size,
        max_running_requests=config.max_running_requests,
        max_tokens_per_step=config.max_tokens_per_step or default_budget,
        enable_prefix_cache=config.enable_prefix_cache,
        max_guessing_tokens=CPU_GUESSING_TOKENS if is_cpu else DEVICE_GUESSING_TOKENS,
        max_overtakes=config.max_overtakes,
    )
    return Scheduler(
        sizes,
        cache=RadixCache(PageAllocator(num_pages, config.page_size), eviction),
        policy=policy,
        stop_token_ids=tokenizer.stop_token_ids,
        proposer=PromptLookup() if config.prompt_lookup else None,
        mask_work=MaskWork(
            JobThreads("mask", MASK_THREADS),
            wakeup.set,
            partial(tokenizer.encode, at_start=False),
            drafts_forced=config.draft_forced,
        ),
    )


def _kernels(device: torch.device, why_torch: str) -> str:
    library = native.library()
    if device.type != "cpu":
        return "triton" if has_gpu_kernels(device) else "torch"
    return library.name if library is not None else f"torch ({why_torch})"


def _info(
    config: EngineConfig,
    loaded: LoadedModel,
    kv_dtype: torch.dtype,
    num_pages: int,
    context_length: int,
    timings: dict[str, float],
) -> EngineInfo:
    kv_tokens = num_pages * config.page_size
    return EngineInfo(
        model=loaded.source,
        architecture=loaded.config.architecture,
        vocab_size=loaded.config.vocab_size,
        context_length=context_length,
        kv_tokens=kv_tokens,
        page_size=config.page_size,
        device=str(loaded.device),
        dtype=str(loaded.dtype).removeprefix("torch."),
        quantization=loaded.quantization,
        kv_cache_dtype=str(kv_dtype).removeprefix("torch."),
        embedding_size=loaded.config.hidden_size if isinstance(loaded.model, HeadApart) else 0,
        num_layers=loaded.config.num_layers,
        num_parameters=num_parameters(loaded.config),
        weight_bytes=loaded.weight_bytes,
        kv_bytes=kv_tokens * kv_bytes_per_token(loaded.config, kv_dtype),
        timings=timings,
    )


def num_parameters(model: ModelConfig) -> int:
    """Weights of the matrices and of the embedding (once, where it is the output head too); norms and biases,
    well below a thousandth, are left out."""
    queries, keys = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    attention = 2 * model.hidden_size * (queries + keys)
    dense = 3 * model.hidden_size * model.intermediate_size
    total = model.num_layers * (attention + dense) + model.vocab_size * model.hidden_size
    if not model.tie_embeddings:
        total += model.vocab_size * model.hidden_size
    if model.moe is not None:
        experts = 3 * model.hidden_size * model.moe.intermediate_size + model.hidden_size
        total += len(model.moe.sparse_layers) * (model.moe.num_experts * experts - dense)
    return total
