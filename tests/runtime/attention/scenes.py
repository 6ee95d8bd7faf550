"""Rows of a step with their keys and values in a pool, and what attention over them should be."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from ramet.kernels import reference
from ramet.runtime.attention import AttentionBackend, AttentionMetadata, TorchAttentionBackend
from ramet.runtime.forward import AttentionSpec, DeviceKVPool

CPU = torch.device("cpu")
LAYER = 1


@dataclasses.dataclass(frozen=True)
class Shape:
    num_kv_heads: int = 3
    group_size: int = 3
    head_dim: int = 64
    page_size: int = 16
    sliding_window: int | None = None
    softcap: float | None = None
    dtype: torch.dtype = torch.float32
    pool_dtype: torch.dtype | None = None
    """None: dtype."""

    @property
    def spec(self) -> AttentionSpec:
        scale = self.head_dim**-0.5
        return AttentionSpec(LAYER, scale, sliding_window=self.sliding_window, softcap=self.softcap)


@dataclasses.dataclass(frozen=True)
class Row:
    """A sequence in the pool: its first num_shared tokens lie in row 0's pages."""

    query_len: int
    kv_len: int
    num_shared: int = 0


MakeBackend = Callable[[Shape, DeviceKVPool], AttentionBackend]


def torch_backend(shape: Shape, pool: DeviceKVPool) -> AttentionBackend:
    return TorchAttentionBackend(
        pool,
        num_heads=shape.num_kv_heads * shape.group_size,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        page_size=shape.page_size,
        device=CPU,
    )


class Scene:
    """Sequences with random q, k and v, their pages scattered over a pool that is NaN wherever no row wrote."""

    def __init__(
        self, shape: Shape, rows: Sequence[Row], seed: int = 0, backend: MakeBackend = torch_backend
    ) -> None:
        self.shape, self.rows = shape, rows
        generator = torch.Generator().manual_seed(seed)
        heads, size = shape.num_kv_heads, shape.page_size
        max_pages = max(-(-row.kv_len // size) for row in rows)
        order = np.random.default_rng(seed).permutation(len(rows) * max_pages + 1).astype(np.int32)
        self.page_table = order[1:].reshape(len(rows), max_pages).copy()
        self.q: list[Tensor] = []
        self.k: list[Tensor] = []
        self.v: list[Tensor] = []
        for index, row in enumerate(rows):
            q = torch.randn(row.kv_len, heads * shape.group_size, shape.head_dim, generator=generator)
            k, v = torch.randn(2, row.kv_len, heads, shape.head_dim, generator=generator)
            shared = row.num_shared // size * size
            self.page_table[index, : shared // size] = self.page_table[0, : shared // size]
            if index:
                k[:shared], v[:shared] = self.k[0][:shared], self.v[0][:shared]
            self.q.append(q.to(shape.dtype))
            self.k.append(k.to(shape.dtype))
            self.v.append(v.to(shape.dtype))
        self.pool = DeviceKVPool(
            num_layers=2,
            num_slots=len(order) * size,
            num_kv_heads=heads,
            head_dim=shape.head_dim,
            dtype=shape.pool_dtype or shape.dtype,
            device=CPU,
        )
        for tensor in self.pool.layer(LAYER):
            tensor.fill_(float("nan"))
        self.backend = backend(shape, self.pool)

    def write_past(self) -> None:
        """Put the KV of the tokens before each row's queries into the pool."""
        for index, row in enumerate(self.rows):
            past = row.kv_len - row.query_len
            slots = torch.tensor(
                [int(self.page_table[index, p // self.shape.page_size]) * self.shape.page_size
                 + p % self.shape.page_size for p in range(past)],
                dtype=torch.int64,
            )  # fmt: skip
            self.pool.write(LAYER, slots, self.k[index][:past], self.v[index][:past])

    def attend(self, pieces: Sequence[tuple[int, int, int]]) -> list[Tensor]:
        """One step over pieces (row, start, end of its queries)."""
        metadata = AttentionMetadata(
            [end - start for _, start, end in pieces],
            [end for _, _, end in pieces],
            self.page_table[[row for row, _, _ in pieces]],
        )
        q, k, v = (
            torch.cat([tensors[row][start:end] for row, start, end in pieces])
            for tensors in (self.q, self.k, self.v)
        )
        out = self.backend.plan(metadata)(q, k, v, self.shape.spec)
        assert out.shape == q.shape
        assert out.dtype == q.dtype
        return list(out.split_with_sizes([end - start for _, start, end in pieces]))

    def step(self) -> list[Tensor]:
        return self.attend([(i, row.kv_len - row.query_len, row.kv_len) for i, row in enumerate(self.rows)])

    def expected(self, index: int) -> Tensor:
        row, shape = self.rows[index], self.shape
        return reference.attention(
            self.q[index][row.kv_len - row.query_len :],
            self.k[index],
            self.v[index],
            scale=shape.spec.scale,
            sliding_window=shape.sliding_window,
            softcap=shape.softcap,
        )

    def check(self, tolerance: float = 1e-5) -> None:
        self.write_past()
        for index, actual in enumerate(self.step()):
            torch.testing.assert_close(actual, self.expected(index), atol=tolerance, rtol=tolerance)


MIXED = [Row(1, 1), Row(1, 200), Row(7, 7), Row(40, 300), Row(2, 193), Row(1, 450), Row(5, 64)]


@st.composite
def scenes(
    draw: st.DrawFn,
    *,
    head_dims: Sequence[int] = (8, 64, 80),
    backend: MakeBackend = torch_backend,
    pool_dtype: torch.dtype | None = None,
) -> Scene:
    num_kv_heads, group_size = draw(st.sampled_from([(1, 1), (1, 4), (2, 3), (3, 3), (2, 8), (4, 2)]))
    shape = Shape(
        num_kv_heads=num_kv_heads,
        group_size=group_size,
        head_dim=draw(st.sampled_from(head_dims)),
        page_size=draw(st.sampled_from([1, 4, 16, 64])),
        sliding_window=draw(st.sampled_from([None, None, 3, 130, 250])),
        softcap=draw(st.sampled_from([None, None, None, 10.0])),
        pool_dtype=pool_dtype,
    )
    rows: list[Row] = []
    for _ in range(draw(st.integers(1, 7))):
        kv_len = draw(st.one_of(st.integers(1, 20), st.integers(1, 620), st.sampled_from([191, 192, 193, 384])))
        query_len = draw(st.one_of(st.just(1), st.integers(1, min(6, kv_len)), st.integers(1, kv_len)))
        past = kv_len - query_len
        shared = draw(st.sampled_from([0, past])) if rows else 0
        shared = min(shared, rows[0].kv_len - rows[0].query_len if rows else 0)
        rows.append(Row(query_len, kv_len, shared))
    return Scene(shape, rows, seed=draw(st.integers(0, 1000)), backend=backend)
