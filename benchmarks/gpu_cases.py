"""What ``benchmarks.gpu`` measures: the kernels at models' shapes, what torch has for it, and what is right."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right

from ramet.kernels import gpu, reference
from ramet.runtime.attention import AttentionMetadata
from ramet.runtime.attention.gpu_backend import GpuAttentionBackend
from ramet.runtime.forward import AttentionPlan, AttentionSpec, DeviceKVPool

PAGE_SIZE = 16


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a model that its kernels see."""

    name: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden: int
    intermediate: int


@dataclass(frozen=True, slots=True)
class Workload:
    """Rows of (queries, tokens in all); the first num_shared tokens of all rows are the same pages."""

    name: str
    rows: tuple[tuple[int, int], ...]
    num_shared: int = 0


MODELS = (
    ModelShape("llama 8B", 32, 8, 128, 4096, 14336),
    ModelShape("qwen3 0.6B", 16, 8, 128, 1024, 3072),
)
WORKLOADS = (
    Workload("decode 1 x 4096", ((1, 4096),)),
    Workload("decode 32 x 1024", ((1, 1024),) * 32),
    Workload("decode 32 x 4096", ((1, 4096),) * 32),
    Workload("decode 128 x 1024", ((1, 1024),) * 128),
    Workload("8 branches of 4096 + 128", ((1, 4224),) * 8, 4096),
    Workload("32 branches of 4096 + 128", ((1, 4224),) * 32, 4096),
    Workload("128 branches of 4096 + 128", ((1, 4224),) * 128, 4096),
    Workload("prefill 2048", ((2048, 2048),)),
    Workload("prefill 512 after 3584", ((512, 4096),)),
)
ROW_COUNTS = (1, 32, 2048)
TINY_MODELS = (ModelShape("tiny", 4, 2, 16, 64, 96),)
TINY_WORKLOADS = (
    Workload("decode 2 x 20", ((1, 20),) * 2),
    Workload("2 branches of 256 + 4", ((1, 260),) * 2, 256),
    Workload("prefill 6 after 3", ((6, 9),)),
)
TINY_ROW_COUNTS = (2,)


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel at one shape. ``error``: the largest difference from the oracle. num_bytes: what has to be
    read and written once. ``others``: the same by other means, for comparison."""

    name: str
    run: Callable[[], object]
    error: Callable[[], float]
    num_bytes: int
    others: dict[str, Callable[[], object]]


class Scene:
    """A workload's rows in a pool of random keys and values, all on the device."""

    def __init__(
        self,
        model: ModelShape,
        workload: Workload,
        dtype: torch.dtype,
        device: torch.device,
        *,
        shares: bool = True,
    ) -> None:
        """shares: False gives every row pages of its own, with the same contents."""
        self.model, self.workload = model, workload
        self.spec = AttentionSpec(0, model.head_dim**-0.5)
        rows = workload.rows
        max_pages = -(-max(kv_len for _, kv_len in rows) // PAGE_SIZE)
        self.pool = DeviceKVPool(
            num_layers=1,
            num_slots=len(rows) * max_pages * PAGE_SIZE,
            num_kv_heads=model.num_kv_heads,
            head_dim=model.head_dim,
            dtype=dtype,
            device=device,
        )
        pages = np.random.default_rng(0).permutation(len(rows) * max_pages).astype(np.int32)
        self.table = pages.reshape(len(rows), max_pages)
        num_shared = workload.num_shared // PAGE_SIZE
        torch.manual_seed(0)
        for tensor in self.pool.layer(0):
            tensor.normal_()
            paged = tensor.view(-1, PAGE_SIZE, model.num_kv_heads, model.head_dim)
            shared = torch.from_numpy(self.table[:, :num_shared]).long().to(device)
            paged[shared] = paged[shared[0]].clone()
        if shares:
            self.table[:, :num_shared] = self.table[0, :num_shared]
        num_tokens = sum(query_len for query_len, _ in rows)
        heads = model.num_heads, model.num_kv_heads, model.num_kv_heads
        joint = torch.randn((num_tokens, sum(heads), model.head_dim), dtype=dtype, device=device)
        self.q, self.k, self.v = joint.split_with_sizes(heads, 1)
        self.backend = GpuAttentionBackend(
            self.pool,
            num_heads=model.num_heads,
            num_kv_heads=model.num_kv_heads,
            head_dim=model.head_dim,
            page_size=PAGE_SIZE,
            dtype=dtype,
            device=device,
        )

    def plan(self, rows: Sequence[int] | None = None) -> AttentionPlan:
        """The attention of all rows, or of some."""
        chosen = range(len(self.workload.rows)) if rows is None else rows
        query_lens, kv_lens = zip(*(self.workload.rows[row] for row in chosen), strict=True)
        return self.backend.plan(AttentionMetadata(query_lens, kv_lens, self.table[list(chosen)]))

    def row(self, index: int) -> tuple[slice, Tensor, Tensor]:
        """A row's tokens in the batch, and its keys and values in order."""
        start = sum(query_len for query_len, _ in self.workload.rows[:index])
        query_len, kv_len = self.workload.rows[index]
        pages = torch.from_numpy(self.table[index]).long().to(self.q.device)
        slots = (pages[:, None] * PAGE_SIZE + torch.arange(PAGE_SIZE, device=pages.device)).view(-1)[:kv_len]
        keys, values = self.pool.layer(0)
        return slice(start, start + query_len), keys[slots], values[slots]

    def error(self) -> float:
        """Of the first row and the last one."""
        out = self.plan()(self.q, self.k, self.v, self.spec)
        worst = 0.0
        for index in (0, len(self.workload.rows) - 1):
            tokens, keys, values = self.row(index)
            expected = reference.attention(
                self.q[tokens], keys, values, scale=self.spec.scale, sliding_window=None, softcap=None
            )
            worst = max(worst, difference(out[tokens], expected))
        return worst

    def sdpa(self) -> Callable[[], object]:
        """torch's attention over keys that already lie together, for rows of equal lengths."""
        parts = [self.row(index) for index in range(len(self.workload.rows))]
        query_len, kv_len = self.workload.rows[0]
        group = self.model.num_heads // self.model.num_kv_heads
        q = torch.stack([self.q[tokens] for tokens, _, _ in parts]).transpose(1, 2).contiguous()
        k = torch.stack([keys for _, keys, _ in parts]).transpose(1, 2).contiguous()
        v = torch.stack([values for _, _, values in parts]).transpose(1, 2).contiguous()
        if query_len == 1:
            return lambda: functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        if query_len == kv_len:
            return lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        bias = causal_lower_right(query_len, kv_len)
        return lambda: functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)

    def num_bytes(self) -> int:
        """Keys and values once, however many rows read them; q and what is written."""
        kv_lens = [kv_len for _, kv_len in self.workload.rows]
        shared = self.workload.num_shared
        tokens = sum(kv_lens) - shared * (len(kv_lens) - 1)
        token = self.model.num_kv_heads * self.model.head_dim * 2
        return (tokens * token + 2 * self.q.numel() + 2 * self.k.numel()) * self.q.element_size()


def cases(
    models: Sequence[ModelShape],
    workloads: Sequence[Workload],
    row_counts: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
) -> Iterator[Case]:
    """Made one by one: each owns its tensors, which are freed with it."""
    for model in models:
        for workload in workloads:
            yield _attention_case(model, workload, dtype, device)
        for num_rows in row_counts:
            yield from _elementwise_cases(model, num_rows, dtype, device)


def same_bits(model: ModelShape, dtype: torch.dtype, device: torch.device, kv_len: int) -> dict[str, bool]:
    """Whether a token's attention has the same bits decoded alone, in a batch that shares its prefix, in one
    that does not, and as the last token of a chunk."""
    num_rows, num_shared = 3, (kv_len - 1) // PAGE_SIZE * PAGE_SIZE
    workload = Workload("", ((1, kv_len),) * num_rows, num_shared)
    scene = Scene(model, workload, dtype, device)
    batched = scene.plan()(scene.q, scene.k, scene.v, scene.spec)
    alone = [
        scene.plan([row])(scene.q[row : row + 1], scene.k[row : row + 1], scene.v[row : row + 1], scene.spec)
        for row in range(num_rows)
    ]
    apart = Scene(model, workload, dtype, device, shares=False)
    unshared = apart.plan()(apart.q, apart.k, apart.v, apart.spec)
    chunk = 9
    tokens, keys, values = scene.row(0)
    queries = torch.randn((chunk, *scene.q.shape[1:]), dtype=dtype, device=device)
    queries[-1] = scene.q[tokens][-1]
    plan = scene.backend.plan(AttentionMetadata([chunk], [kv_len], scene.table[:1]))
    in_chunk = plan(queries, keys[-chunk:], values[-chunk:], scene.spec)
    return {
        "alone and batched": torch.equal(torch.cat(alone), batched),
        "prefix shared and not": torch.equal(unshared, batched),
        "decoded and in a chunk": torch.equal(in_chunk[-1], batched[0]),
    }


def _attention_case(model: ModelShape, workload: Workload, dtype: torch.dtype, device: torch.device) -> Case:
    scene = Scene(model, workload, dtype, device)
    plan = scene.plan()
    others = {"torch sdpa": scene.sdpa()}
    if workload.num_shared:
        apart = Scene(model, workload, dtype, device, shares=False)
        plain = apart.plan()
        others["not shared"] = lambda: plain(apart.q, apart.k, apart.v, apart.spec)
    return Case(
        f"{model.name}: {workload.name}",
        lambda: plan(scene.q, scene.k, scene.v, scene.spec),
        scene.error,
        scene.num_bytes(),
        others,
    )


def _elementwise_cases(
    model: ModelShape, num_rows: int, dtype: torch.dtype, device: torch.device
) -> Iterator[Case]:
    x, residual = torch.randn((2, num_rows, model.hidden), dtype=dtype, device=device).unbind(0)
    weight = torch.randn(model.hidden, device=device)
    name, size = f"{model.name}, {num_rows} rows", dtype.itemsize
    plain = weight.to(dtype)
    yield Case(
        f"add + rms norm, {name}",
        lambda: gpu.add_rms_norm(x, residual, weight, 1e-5),
        lambda: differences(
            gpu.add_rms_norm(x, residual, weight, 1e-5), reference.add_rms_norm(x, residual, weight, 1e-5)
        ),
        4 * x.numel() * size,
        {"torch": lambda: functional.rms_norm(x + residual, (model.hidden,), plain, 1e-5)},
    )
    gate_up = torch.randn((num_rows, 2 * model.intermediate), dtype=dtype, device=device)
    yield Case(
        f"gated activation, {name}",
        lambda: gpu.gated_activation(gate_up, "silu"),
        lambda: difference(gpu.gated_activation(gate_up, "silu"), reference.gated_activation(gate_up, "silu")),
        3 * gate_up.numel() // 2 * size,
        {"torch": lambda: reference.gated_activation(gate_up, "silu")},
    )
    int8, scale = reference.quantize_rows_int8(torch.randn((model.hidden, model.hidden), device=device))
    floats = torch.randn((model.hidden, model.hidden), dtype=dtype, device=device)
    yield Case(
        f"int8 linear, {name}",
        lambda: gpu.linear_int8(x, int8, scale),
        # Relative: results of many channels are far from 1.
        lambda: (
            difference(gpu.linear_int8(x, int8, scale), reference.linear_int8(x, int8, scale))
            / max(1.0, float(reference.linear_int8(x, int8, scale).abs().max()))
        ),
        int8.numel() + 2 * x.numel() * size,
        {"torch, not quantised": lambda: functional.linear(x, floats)},
    )
    heads = model.num_heads, model.num_kv_heads, model.num_kv_heads
    joint = torch.randn((num_rows, sum(heads), model.head_dim), dtype=dtype, device=device)
    q, k, v = joint.split_with_sizes(heads, 1)
    angles = torch.randn((num_rows, model.head_dim // 2), device=device)
    rope = angles.cos(), angles.sin()
    keys, values = torch.zeros((2, num_rows, *k.shape[1:]), dtype=dtype, device=device).unbind(0)
    slots = torch.randperm(num_rows, device=device)

    def in_torch() -> Tensor:
        rotated_q, rotated_k = reference.apply_rope(q, k, *rope)
        keys.index_copy_(0, slots, rotated_k)
        values.index_copy_(0, slots, v)
        return rotated_q

    def rope_error() -> float:
        rotated = gpu.rope_write_kv(q, k, v, rope, slots, (keys, values))
        written = keys[slots], values[slots]
        return differences((rotated, *written), (*reference.apply_rope(q, k, *rope), v))

    yield Case(
        f"rope + cache write, {name}",
        lambda: gpu.rope_write_kv(q, k, v, rope, slots, (keys, values)),
        rope_error,
        2 * joint.numel() * size + 2 * angles.numel() * 4 + slots.numel() * 8,
        {"torch": in_torch},
    )


def differences(actual: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> float:
    return max(difference(a, b) for a, b in zip(actual, expected, strict=True))


def difference(actual: Tensor, expected: Tensor) -> float:
    """The largest one, of values that are not finite too."""
    if not bool(actual.isfinite().all()):
        return float("inf")
    return float((actual.float() - expected.float()).abs().max())
