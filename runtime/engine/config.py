"""EngineConfig: every setting of an engine, in one frozen record."""

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ramet.runtime.protocol import InvalidRequestError

DTYPES = ("auto", "float32", "bfloat16", "float16")
QUANTIZATIONS = ("auto", "none", "int8", "fp8", "int4")
KV_CACHE_DTYPES = ("auto", "float32", "bfloat16", "float16", "fp8", "int8")
SCHEDULE_POLICIES = ("lpm", "fcfs")
EVICTION_POLICIES = ("lru", "lfu")

ELSEWHERE = {
    "block_size": "page_size",
    "chunked_prefill_size": "max_tokens_per_step",
    "disable_radix_cache": "enable_prefix_cache=False",
    "download_dir": "HF_HOME in the environment",
    "enable_prefix_caching": "enable_prefix_cache",
    "gpu_memory_utilization": "memory_fraction",
    "max_model_len": "context_length",
    "max_num_batched_tokens": "max_tokens_per_step",
    "max_num_seqs": "max_running_requests",
    "max_prefill_tokens": "max_tokens_per_step",
    "max_seq_len": "context_length",
    "max_total_tokens": "kv_tokens",
    "mem_fraction_static": "memory_fraction",
    "model_path": "model",
    "n_ctx": "context_length",
    "n_threads": "threads",
    "random_seed": "seed",
    "torch_dtype": "dtype",
}
"""What settings of other engines are called here."""

_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Frozen, validated on construction. None (or "auto") means: chosen from the model and the machine.

    Raises:
        InvalidRequestError: a value is out of range; the message names the field, the value and the range.
    """

    model: str = "smollm2"
    """An embedded model's name, a .gguf file, a Hugging Face folder, or a hub id such as org/name."""
    device: str = "auto"
    """auto (cuda if there is one), cpu, cuda or cuda:N."""
    dtype: str = "auto"
    """Of activations and unquantised weights: float32, bfloat16 or float16. auto: float32 on CPU, bfloat16 on
    CUDA.
    """
    quantization: str = "auto"
    """Of the linear layers' weights: none, int8, int4 (a scale for 32 weights), or on CUDA fp8 (e4m3). auto:
    int8 on a CPU if dtype is auto too, else none."""
    kv_cache_dtype: str = "auto"
    """Of cached keys and values: the activations' dtype, or on a CPU with AVX512_BF16 and compiled kernels also
    bfloat16, which auto chooses there beside int8 weights. On CUDA also fp8 (e4m3) or int8 (a scale each token
    and head), which are half the size and cost some precision; auto never chooses them.
    """
    context_length: int | None = None
    """Most tokens of prompt and answer together; None: what the model was trained for."""
    kv_tokens: int | None = None
    """Size of the KV pool, tokens; None: sized from the memory that is free."""
    memory_fraction: float | None = None
    """Where kv_tokens is None: share of the memory that KV may take, (0, 1]. On a CPU of what is
    available, on a CUDA device of all of it, what the weights take included."""
    page_size: int = 1
    """Tokens a KV page; prefixes are shared in whole pages, so 1 shares every token. It costs little:
    scheduling takes about a fifth more than with 16, which is a hundredth of a step."""
    max_running_requests: int = 128
    """Requests that are computed in the same step at most; the others wait."""
    max_tokens_per_step: int | None = None
    """Prompt and decode tokens of one step at most; longer prompts are computed in chunks. None: 512 on CPU,
    8192 on CUDA."""
    schedule_policy: str = "lpm"
    """lpm (longest cached prefix first) or fcfs (first come, first served)."""
    max_overtakes: int = 64
    """With lpm: a waiting request is overtaken by younger ones this often at most."""
    eviction_policy: str = "lru"
    """Which cached prefix goes first when pages run out: lru (least recently; what a running program is to use
    again counts as used later) or lfu (least frequently used).
    """
    enable_prefix_cache: bool = True
    """False: nothing is kept of a finished request. The tokens are the same either way."""
    prompt_lookup: bool = True
    """Guess what comes next where the answer repeats its prompt or itself, and verify several tokens in one
    step. The tokens are the same either way; it stops by itself for answers in which it is wrong."""
    draft_forced: bool = True
    """Verify what a grammar forces in one step, instead of sampling it token by token. The tokens are the same
    either way."""
    max_resamples: int = 3
    """How often an answer is drawn again that does not meet a schema of which a part is not enforced but only
    validated (JsonSchema with strict false); then the request fails."""
    threads: int | None = None
    """CPU threads of one operation; None: one a physical core."""
    cache_dir: str | None = None
    """Where converted weights are kept; None: the user's cache folder."""
    seed: int | None = None
    """From which the seeds of requests without one are drawn, in order of arrival; None: at random."""

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not self.model.strip():
            _fail("model", self.model, "an embedded model's name, a file, a folder or a hub id")
        if not isinstance(self.device, str) or not _DEVICE.fullmatch(self.device):
            _fail("device", self.device, "auto, cpu, cuda or cuda:N")
        _check_choice("dtype", self.dtype, DTYPES)
        _check_choice("quantization", self.quantization, QUANTIZATIONS)
        _check_choice("kv_cache_dtype", self.kv_cache_dtype, KV_CACHE_DTYPES)
        _check_choice("schedule_policy", self.schedule_policy, SCHEDULE_POLICIES)
        _check_choice("eviction_policy", self.eviction_policy, EVICTION_POLICIES)
        _check_int("context_length", self.context_length, 2, None, optional=True)
        _check_int("kv_tokens", self.kv_tokens, 2, None, optional=True)
        _check_fraction("memory_fraction", self.memory_fraction)
        _check_int("page_size", self.page_size, 1, 1024)
        _check_int("max_running_requests", self.max_running_requests, 1, 65536)
        _check_int("max_tokens_per_step", self.max_tokens_per_step, 1, None, optional=True)
        _check_int("max_overtakes", self.max_overtakes, 0, None)
        _check_int("max_resamples", self.max_resamples, 0, 100)
        _check_int("threads", self.threads, 1, 1024, optional=True)
        _check_int("seed", self.seed, -(2**63), 2**63 - 1, optional=True)
        _check_bool("enable_prefix_cache", self.enable_prefix_cache)
        _check_bool("prompt_lookup", self.prompt_lookup)
        _check_bool("draft_forced", self.draft_forced)
        named = isinstance(self.cache_dir, str) and self.cache_dir and "\0" not in self.cache_dir
        if self.cache_dir is not None and not named:
            _fail("cache_dir", self.cache_dir, "a folder, or None")

    @classmethod
    def of(cls, model: "str | os.PathLike[str]", settings: dict[str, Any]) -> "EngineConfig":
        """The record from what a user wrote: paths are taken, unknown names refused with the nearest known
        one.
        """
        known = cls.__struct_fields__
        for name in settings:
            if name not in known:
                hint = name_hint(name, known, ELSEWHERE)
                raise InvalidRequestError(f"there is no setting {name!r}; {hint}", field=name)
        values = {
            name: os.fspath(value) if isinstance(value, os.PathLike) else value
            for name, value in {"model": model, **settings}.items()
        }
        return cls(**values)


def name_hint(name: str, known: Sequence[str], elsewhere: Mapping[str, str]) -> str:
    """What an unknown name may have meant: ``elsewhere`` says what other engines' names are called here."""
    if name in elsewhere:
        return f"here it is {elsewhere[name]}"
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"they are {', '.join(known)}"


def _fail(field: str, value: object, expected: str) -> None:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    raise InvalidRequestError(f"{field} is {shown}; it must be {expected}", field=field)


def _check_bool(field: str, value: object) -> None:
    if not isinstance(value, bool):
        _fail(field, value, "True or False")


def _check_fraction(field: str, value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        _fail(field, value, "a number above 0 and at most 1")


def _check_choice(field: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        _fail(field, value, f"one of {', '.join(choices)}")


def _check_int(field: str, value: object, low: int, high: int | None, *, optional: bool = False) -> None:
    if value is None and optional:
        return
    bounds = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or value < low
        or (high is not None and value > high)
    ):
        _fail(field, value, bounds)
