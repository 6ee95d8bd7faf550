"""Paged attention through the Triton kernels: against the oracle, and a token's bits in any batch."""

import dataclasses
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.kernels import reference
from ramet.runtime.attention import AttentionBackend, AttentionMetadata
from ramet.runtime.attention.gpu_backend import GpuAttentionBackend
from ramet.runtime.forward import DeviceKVPool
from tests.runtime.attention.scenes import CPU, Row, Scene, Shape


def backend(shape: Shape, pool: DeviceKVPool) -> AttentionBackend:
    return GpuAttentionBackend(
        pool,
        num_heads=shape.num_kv_heads * shape.group_size,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        page_size=shape.page_size,
        dtype=shape.dtype,
        device=CPU,
    )


DECODE = [Row(1, 1), Row(1, 300), Row(1, 256), Row(1, 513)]
MIXED = [Row(1, 1), Row(1, 270), Row(7, 7), Row(10, 300), Row(2, 257)]


@pytest.mark.parametrize(
    ("head_dim", "group_size", "dtype"),
    [
        (64, 3, torch.float32),
        (80, 1, torch.float32),
        (96, 8, torch.float16),
        (128, 4, torch.float16),
        (256, 2, torch.float16),
    ],
)
def test_head_sizes_and_groups(head_dim: int, group_size: int, dtype: torch.dtype) -> None:
    shape = Shape(num_kv_heads=1, group_size=group_size, head_dim=head_dim, dtype=dtype)
    scene = Scene(shape, MIXED, backend=backend)
    scene.check(1e-5 if dtype is torch.float32 else 2e-3)


@pytest.mark.parametrize(
    ("page_size", "sliding_window", "softcap"),
    [(1, None, None), (4, 100, None), (48, 256, 5.0), (64, 1, 5.0), (512, 300, None), (16, None, 5.0)],
)
def test_pages_windows_and_soft_caps(page_size: int, sliding_window: int | None, softcap: float | None) -> None:
    shape = Shape(
        page_size=page_size,
        sliding_window=sliding_window,
        softcap=softcap,
        head_dim=16,
        num_kv_heads=1,
        group_size=2,
    )
    Scene(shape, MIXED, backend=backend).check()
    Scene(shape, DECODE, backend=backend).check()


@pytest.mark.parametrize("sliding_window", [None, 150])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_token_alone_equals_it_in_any_batch(sliding_window: int | None, dtype: torch.dtype) -> None:
    shape = Shape(num_kv_heads=1, head_dim=32, sliding_window=sliding_window, dtype=dtype)
    scene = Scene(shape, MIXED, backend=backend)
    scene.write_past()
    for index, actual in enumerate(scene.step()):
        row = scene.rows[index]
        for offset in {0, row.query_len - 1}:
            position = row.kv_len - row.query_len + offset
            alone = scene.attend([(index, position, position + 1)])[0]
            assert torch.equal(alone[0], actual[offset]), (row, offset)


def test_however_a_prompt_is_cut_its_tokens_are_the_same() -> None:
    shape = Shape(num_kv_heads=1, group_size=1, head_dim=16)
    expected = Scene(shape, [Row(270, 270)], backend=backend).step()[0]
    scene = Scene(shape, [Row(270, 270)], backend=backend)
    cuts = itertools.pairwise((0, 64, 65, 255, 258, 270))
    pieces = [scene.attend([(0, start, end)])[0] for start, end in cuts]
    assert torch.equal(torch.cat(pieces), expected)


def test_many_rows_that_share_a_prefix() -> None:
    rows = [Row(1, 260)] + [Row(1 + i % 3, 262 + i, 256) for i in range(9)] + [Row(6, 264, 256)]
    shape = Shape(num_kv_heads=1, group_size=5, head_dim=16)
    scene = Scene(shape, rows, backend=backend)
    scene.check()
    step = scene.step()
    for index in (0, 3, 10):
        row = rows[index]
        alone = scene.attend([(index, row.kv_len - row.query_len, row.kv_len)])[0]
        assert torch.equal(alone, step[index]), row


def test_a_row_reads_pages_that_another_row_of_its_step_writes() -> None:
    rows = [Row(272, 272), Row(1, 273, 272), Row(8, 280, 272)]
    scene = Scene(Shape(num_kv_heads=1, group_size=1, head_dim=16), rows, backend=backend)
    for index, actual in enumerate(scene.step()):
        torch.testing.assert_close(actual, scene.expected(index))


def test_layers_of_different_windows_share_a_plan() -> None:
    scene = Scene(Shape(num_kv_heads=1, head_dim=16), [Row(1, 300), Row(9, 200)], backend=backend)
    scene.write_past()
    plan = scene.backend.plan(AttentionMetadata([1, 9], [300, 200], scene.page_table))
    q, k, v = (torch.cat([x[0][-1:], x[1][-9:]]) for x in (scene.q, scene.k, scene.v))
    for window in (50, None, 10_000, 50):
        spec = dataclasses.replace(scene.shape.spec, sliding_window=window)
        parts = ((q[:1], scene.k[0], scene.v[0]), (q[1:], scene.k[1], scene.v[1]))
        expected = torch.cat(
            [
                reference.attention(x, keys, values, scale=spec.scale, sliding_window=window, softcap=None)
                for x, keys, values in parts
            ]
        )
        torch.testing.assert_close(plan(q, k, v, spec), expected)


def test_views_of_a_joint_projection_are_taken_as_they_are() -> None:
    scene = Scene(Shape(head_dim=16), [Row(1, 9), Row(6, 6)], backend=backend)
    scene.write_past()
    expected = torch.cat(scene.step())
    joint = torch.cat([torch.cat([x[0][-1:], x[1]]) for x in (scene.q, scene.k, scene.v)], dim=1)
    q, k, v = joint.split_with_sizes((9, 3, 3), 1)
    plan = scene.backend.plan(AttentionMetadata([1, 6], [9, 6], scene.page_table))
    assert torch.equal(plan(q, k, v, scene.shape.spec), expected)
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    assert torch.equal(plan(q, k, v, scene.shape.spec), expected)


def test_a_token_that_is_not_finite_stays_alone() -> None:
    scene = Scene(Shape(head_dim=16, num_kv_heads=1), [Row(1, 20), Row(1, 20), Row(30, 30)], backend=backend)
    scene.q[0][-1, 2, 5] = float("nan")
    scene.q[2][7, 1, 0] = float("nan")
    scene.write_past()
    first, second, third = scene.step()
    assert not first[0, 2].isfinite().any()
    assert first[0, :2].isfinite().all()
    assert second.isfinite().all()
    assert third[:7].isfinite().all()
    assert third[8:].isfinite().all()


def test_heads_that_the_kernels_do_not_hold_are_refused() -> None:
    assert GpuAttentionBackend.supports(32, 8, 256, torch.float16)
    assert not GpuAttentionBackend.supports(32, 8, 288, torch.float16)
    assert not GpuAttentionBackend.supports(128, 1, 64, torch.float16)
    shape = Shape(num_kv_heads=1, group_size=17)
    with pytest.raises(ValueError, match="17 query heads share a KV head"):
        Scene(shape, [Row(1, 1)], backend=backend)


@settings(max_examples=6)
@given(st.data())
def test_any_batch_equals_the_oracle_and_its_tokens_alone(data: st.DataObject) -> None:
    shape = Shape(
        num_kv_heads=1,
        group_size=data.draw(st.sampled_from([1, 2, 5])),
        head_dim=16,
        page_size=data.draw(st.sampled_from([1, 16, 48])),
        sliding_window=data.draw(st.sampled_from([None, 3, 260])),
        softcap=data.draw(st.sampled_from([None, 10.0])),
    )
    rows: list[Row] = []
    for _ in range(data.draw(st.integers(1, 4))):
        kv_len = data.draw(st.one_of(st.integers(1, 20), st.sampled_from([255, 256, 257, 520])))
        past = kv_len - data.draw(st.integers(1, min(6, kv_len)))
        shared = data.draw(st.sampled_from([0, past])) if rows else 0
        shared = min(shared, rows[0].kv_len - rows[0].query_len if rows else 0)
        rows.append(Row(kv_len - past, kv_len, shared))
    scene = Scene(shape, rows, seed=data.draw(st.integers(0, 99)), backend=backend)
    scene.write_past()
    for index, actual in enumerate(scene.step()):
        torch.testing.assert_close(actual, scene.expected(index), atol=2e-5, rtol=1e-4)
        row = scene.rows[index]
        alone = scene.attend([(index, row.kv_len - row.query_len, row.kv_len - row.query_len + 1)])[0]
        assert torch.equal(alone[0], actual[0]), row
