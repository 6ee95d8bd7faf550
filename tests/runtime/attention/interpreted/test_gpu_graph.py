"""The attention of captured steps: the bits of eager ones, from buffers that stay where they are."""

import dataclasses

import pytest
import torch
from torch import Tensor

from ramet.runtime.attention import AttentionMetadata
from ramet.runtime.attention.base import GraphableAttention, GraphSize
from ramet.runtime.attention.gpu_graph import GraphBuffers, padded_rows
from tests.runtime.attention.interpreted.test_gpu_backend import backend
from tests.runtime.attention.scenes import LAYER, Row, Scene, Shape


def metadata_of(scene: Scene) -> AttentionMetadata:
    return AttentionMetadata([1] * len(scene.rows), [row.kv_len for row in scene.rows], scene.page_table)


def inputs(scene: Scene, size: GraphSize) -> tuple[Tensor, Tensor, Tensor]:
    """The rows' last tokens, and garbage behind them."""
    parts = []
    for tensors in (scene.q, scene.k, scene.v):
        last = torch.stack([tensor[-1] for tensor in tensors])
        padding = torch.full((size.num_rows - len(last), *last.shape[1:]), 1e4, dtype=last.dtype)
        parts.append(torch.cat((last, padding)))
    q, k, v = parts
    return q, k, v


def buffers_of(scene: Scene, max_rows: int = 8, max_pages: int = 40) -> GraphBuffers:
    assert isinstance(scene.backend, GraphableAttention)
    found = scene.backend.graph_buffers(max_rows, max_pages)
    assert isinstance(found, GraphBuffers)
    return found


ROWS = [Row(1, 300), Row(1, 290, 256), Row(1, 1), Row(1, 257, 256), Row(1, 30)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("page_size", [1, 16])
def test_bits_are_those_of_eager_steps(dtype: torch.dtype, page_size: int) -> None:
    shape = Shape(num_kv_heads=1, group_size=2, head_dim=16, dtype=dtype, page_size=page_size)
    scene = Scene(shape, ROWS, backend=backend)
    scene.write_past()
    expected = torch.cat(scene.step())
    pool = [tensor.clone() for tensor in scene.pool.layer(LAYER)]
    buffers = buffers_of(scene, max_pages=640 // page_size)
    size = buffers.load(metadata_of(scene))
    # One item for the shared span of three rows, one each for their rest and for the others.
    assert size == GraphSize(8, 8)
    out = buffers.plan(size)(*inputs(scene, size), shape.spec)
    assert torch.equal(out[: len(ROWS)], expected)
    assert not out[len(ROWS) :].any()
    for tensor, before in zip(scene.pool.layer(LAYER), pool, strict=True):
        torch.testing.assert_close(tensor, before, rtol=0, atol=0, equal_nan=True)


def test_a_plan_reads_what_was_loaded_last() -> None:
    shape = Shape(num_kv_heads=1, group_size=1, head_dim=16)
    scene = Scene(shape, ROWS, backend=backend)
    scene.write_past()
    windowed = dataclasses.replace(shape.spec, sliding_window=40)
    buffers, first = buffers_of(scene), metadata_of(scene)
    size = buffers.load(first)
    assert size is not None
    plan = buffers.plan(size)
    results = {spec: plan(*inputs(scene, size), spec)[: len(ROWS)] for spec in (shape.spec, windowed)}
    backwards = AttentionMetadata(first.query_lens, first.kv_lens[::-1], first.page_table[::-1])
    assert buffers.load(backwards) == size
    q, k, v = (torch.cat((x[: len(ROWS)].flip(0), x[len(ROWS) :])) for x in inputs(scene, size))
    for spec, expected in results.items():
        assert torch.equal(plan(q, k, v, spec)[: len(ROWS)].flip(0), expected)


def test_what_does_not_fit_is_left_to_eager_steps() -> None:
    scene = Scene(Shape(num_kv_heads=1, group_size=1, head_dim=16), ROWS, backend=backend)
    assert buffers_of(scene, max_rows=4).load(metadata_of(scene)) is None
    two = AttentionMetadata([2], [9], scene.page_table)
    assert buffers_of(scene).load(two) is None
    small = buffers_of(scene, max_rows=5, max_pages=16)
    table = scene.page_table[[0, 2, 2, 2, 4, 4, 4, 4]]
    spans = AttentionMetadata([1] * 8, [300, 1, 1, 1, 30, 30, 30, 30], table)
    assert small.load(spans) is None
    assert small.load(AttentionMetadata([1] * 7, spans.kv_lens[1:], table[1:])) == GraphSize(8, 8)


def test_padded_rows() -> None:
    assert [padded_rows(n) for n in (1, 2, 3, 5, 8, 9, 16, 17, 128)] == [1, 2, 4, 8, 8, 16, 16, 24, 128]
