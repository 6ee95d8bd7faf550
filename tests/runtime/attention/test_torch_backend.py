"""Paged attention in plain torch: against the oracle, and a token's bits against its own in any batch."""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ramet.kernels import reference
from ramet.runtime.attention import AttentionMetadata, TorchAttentionBackend
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


class Scene:
    """Sequences with random q, k and v, their pages scattered over a pool that is NaN wherever no row wrote."""

    def __init__(self, shape: Shape, rows: Sequence[Row], seed: int = 0) -> None:
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
            dtype=shape.dtype,
            device=CPU,
        )
        for tensor in self.pool.layer(LAYER):
            tensor.fill_(float("nan"))
        self.backend = TorchAttentionBackend(
            self.pool,
            num_heads=heads * shape.group_size,
            num_kv_heads=heads,
            head_dim=shape.head_dim,
            page_size=size,
            device=CPU,
        )

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


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("group_size", [1, 2, 3, 8])
def test_head_sizes_and_groups(head_dim: int, group_size: int) -> None:
    Scene(Shape(num_kv_heads=2, group_size=group_size, head_dim=head_dim), MIXED).check()


@pytest.mark.parametrize("page_size", [1, 4, 16, 48, 64])
@pytest.mark.parametrize("sliding_window", [None, 1, 100, 192, 256])
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_pages_windows_and_soft_caps(page_size: int, sliding_window: int | None, softcap: float | None) -> None:
    shape = Shape(page_size=page_size, sliding_window=sliding_window, softcap=softcap, head_dim=32)
    Scene(shape, MIXED).check()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_pools(dtype: torch.dtype) -> None:
    Scene(Shape(dtype=dtype), MIXED).check(tolerance=2e-2)


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("num_kv_heads", [1, 3])
def test_a_token_alone_equals_it_in_any_batch(num_threads: int, num_kv_heads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        scene = Scene(Shape(num_kv_heads=num_kv_heads, group_size=4 if num_kv_heads == 1 else 3), MIXED)
        scene.write_past()
        for index, actual in enumerate(scene.step()):
            row = scene.rows[index]
            for offset in {0, row.query_len // 2, row.query_len - 1}:
                position = row.kv_len - row.query_len + offset
                alone = scene.attend([(index, position, position + 1)])[0]
                assert torch.equal(alone[0], actual[offset]), (row, offset)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("sliding_window", [None, 150])
def test_however_a_prompt_is_cut_its_tokens_are_the_same(sliding_window: int | None) -> None:
    whole = Scene(Shape(sliding_window=sliding_window), [Row(500, 500)])
    expected = whole.step()[0]
    for cuts in ((0, 64, 500), (0, 1, 3, 191, 193, 384, 497, 500), (0, 250, 251, 252, 253, 257, 500)):
        scene = Scene(Shape(sliding_window=sliding_window), [Row(500, 500)])
        pieces = [scene.attend([(0, start, end)])[0] for start, end in itertools.pairwise(cuts)]
        assert torch.equal(torch.cat(pieces), expected), cuts


def test_rows_that_share_a_prefix() -> None:
    rows = [Row(1, 700)] + [Row(1 + i % 3, 600 + 11 * i, 592) for i in range(8)] + [Row(30, 640, 592)]
    scene = Scene(Shape(), rows)
    scene.check()
    for index, actual in enumerate(scene.step()):
        row = rows[index]
        alone = scene.attend([(index, row.kv_len - row.query_len, row.kv_len)])[0]
        assert torch.equal(alone, actual), row


def test_a_row_reads_pages_that_another_row_of_its_step_writes() -> None:
    rows = [Row(400, 400), Row(1, 401, 400), Row(8, 408, 400)]
    scene = Scene(Shape(), rows)
    for index, actual in enumerate(scene.step()):
        torch.testing.assert_close(actual, scene.expected(index))


def test_layers_of_different_windows_share_a_plan() -> None:
    scene = Scene(Shape(), [Row(1, 300), Row(20, 200)])
    scene.write_past()
    metadata = AttentionMetadata([1, 20], [300, 200], scene.page_table)
    plan = scene.backend.plan(metadata)
    q, k, v = (torch.cat([x[0][-1:], x[1][-20:]]) for x in (scene.q, scene.k, scene.v))
    for window in (50, None, 10_000, 50):
        spec = dataclasses.replace(scene.shape.spec, sliding_window=window)
        expected = torch.cat([
            reference.attention(
                x_q, x_k, x_v, scale=spec.scale, sliding_window=window, softcap=None
            )
            for x_q, x_k, x_v in ((q[:1], scene.k[0], scene.v[0]), (q[1:], scene.k[1], scene.v[1]))
        ])  # fmt: skip
        torch.testing.assert_close(plan(q, k, v, spec), expected)


def test_views_of_a_joint_projection_are_taken_as_they_are() -> None:
    scene = Scene(Shape(), [Row(1, 9), Row(6, 6)])
    scene.write_past()
    expected = torch.cat(scene.step())
    joint = torch.cat([
        torch.cat([x[0][-1:], x[1]]) for x in (scene.q, scene.k, scene.v)
    ], dim=1)  # fmt: skip
    q, k, v = joint.split_with_sizes((9, 3, 3), 1)
    plan = scene.backend.plan(AttentionMetadata([1, 6], [9, 6], scene.page_table))
    assert torch.equal(plan(q, k, v, scene.shape.spec), expected)


@pytest.mark.parametrize(("query_len", "kv_len"), [(1, 17), (0, 5), (6, 5)])
def test_a_row_without_pages_or_queries_is_a_bug_of_the_caller(query_len: int, kv_len: int) -> None:
    scene = Scene(Shape(), [Row(1, 16)])
    metadata = AttentionMetadata([query_len], [kv_len], scene.page_table)
    with pytest.raises(AssertionError, match="row 0"):
        scene.backend.plan(metadata)


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    num_kv_heads, group_size = draw(st.sampled_from([(1, 1), (1, 4), (2, 3), (3, 3), (2, 8), (4, 2)]))
    shape = Shape(
        num_kv_heads=num_kv_heads,
        group_size=group_size,
        head_dim=draw(st.sampled_from([8, 64, 80])),
        page_size=draw(st.sampled_from([1, 4, 16, 64])),
        sliding_window=draw(st.sampled_from([None, None, 3, 130, 250])),
        softcap=draw(st.sampled_from([None, None, None, 10.0])),
    )
    rows: list[Row] = []
    for _ in range(draw(st.integers(1, 7))):
        kv_len = draw(st.one_of(st.integers(1, 20), st.integers(1, 620), st.sampled_from([191, 192, 193, 384])))
        query_len = draw(st.one_of(st.just(1), st.integers(1, min(6, kv_len)), st.integers(1, kv_len)))
        past = kv_len - query_len
        shared = draw(st.sampled_from([0, past])) if rows else 0
        shared = min(shared, rows[0].kv_len - rows[0].query_len if rows else 0)
        rows.append(Row(query_len, kv_len, shared))
    return Scene(shape, rows, seed=draw(st.integers(0, 1000)))


@settings(max_examples=30)
@given(scenes())
def test_any_batch_equals_the_oracle_and_its_tokens_alone(scene: Scene) -> None:
    scene.write_past()
    for index, actual in enumerate(scene.step()):
        torch.testing.assert_close(actual, scene.expected(index), atol=2e-5, rtol=1e-4)
        row = scene.rows[index]
        for offset in {0, row.query_len - 1}:
            position = row.kv_len - row.query_len + offset
            alone = scene.attend([(index, position, position + 1)])[0]
            assert torch.equal(alone[0], actual[offset]), (row, offset)
