"""Paged attention in plain torch: against the oracle, and a token's bits against its own in any batch."""

import dataclasses
import itertools

import pytest
import torch
from hypothesis import given, settings

from ramet.kernels import reference
from ramet.runtime.attention import AttentionMetadata
from tests.runtime.attention.scenes import MIXED, Row, Scene, Shape, scenes


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
