"""Paged attention in the compiled kernel: against the oracle, and a token's bits in any batch."""

import dataclasses
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.kernels import native, reference
from ramet.runtime.attention import AttentionBackend, AttentionMetadata, NativeAttentionBackend
from ramet.runtime.forward import DeviceKVPool
from tests.runtime.attention.scenes import MIXED, Row, Scene, Shape, scenes

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 3e-2}
POOL_DTYPES = [torch.float32, torch.bfloat16]


def backend(shape: Shape, pool: DeviceKVPool) -> AttentionBackend:
    library = native.library()
    assert library is not None
    if pool.layer(0)[0].dtype not in library.kv_dtypes:
        pytest.skip("this CPU does not multiply bfloat16")
    return NativeAttentionBackend(library, pool, page_size=shape.page_size)


@pytest.fixture(scope="module", autouse=True)
def compiled(tmp_path_factory: pytest.TempPathFactory) -> None:
    if reason := native.enable(tmp_path_factory.mktemp("kernels")):
        pytest.skip(reason)


@pytest.mark.parametrize("pool_dtype", POOL_DTYPES)
@pytest.mark.parametrize("head_dim", [16, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("group_size", [1, 2, 3, 8])
def test_head_sizes_and_groups(head_dim: int, group_size: int, pool_dtype: torch.dtype) -> None:
    shape = Shape(num_kv_heads=2, group_size=group_size, head_dim=head_dim, pool_dtype=pool_dtype)
    Scene(shape, MIXED, backend=backend).check(TOLERANCES[pool_dtype])


@pytest.mark.parametrize("page_size", [1, 4, 16, 48, 64])
@pytest.mark.parametrize("sliding_window", [None, 1, 100, 192, 256])
@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("pool_dtype", POOL_DTYPES)
def test_pages_windows_and_soft_caps(
    page_size: int, sliding_window: int | None, softcap: float | None, pool_dtype: torch.dtype
) -> None:
    shape = Shape(
        page_size=page_size,
        sliding_window=sliding_window,
        softcap=softcap,
        head_dim=32,
        pool_dtype=pool_dtype,
    )
    Scene(shape, MIXED, backend=backend).check(TOLERANCES[pool_dtype])


@pytest.mark.parametrize("head_dim", [48, 80])
@pytest.mark.parametrize("pool_dtype", POOL_DTYPES)
def test_more_spans_than_are_folded_together(head_dim: int, pool_dtype: torch.dtype) -> None:
    shape = Shape(head_dim=head_dim, page_size=16, pool_dtype=pool_dtype)
    rows = [Row(1, 16 * 192), Row(3, 16 * 192 + 2), Row(1, 40 * 192 + 7)]
    Scene(shape, rows, backend=backend).check(TOLERANCES[pool_dtype])


@pytest.mark.parametrize("pool_dtype", POOL_DTYPES)
def test_what_is_rounded_is_rounded_once(pool_dtype: torch.dtype) -> None:
    """Over inputs that bfloat16 holds only the products' sums and the weights of the values differ."""
    scene = Scene(Shape(pool_dtype=pool_dtype), MIXED, backend=backend)
    for tensors in (scene.q, scene.k, scene.v):
        for tensor in tensors:
            tensor.copy_(tensor.bfloat16())
    scene.write_past()
    for index, actual in enumerate(scene.step()):
        expected = scene.expected(index)
        assert (actual - expected).norm() <= (1e-6 if pool_dtype is torch.float32 else 4e-3) * expected.norm()


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("num_kv_heads", [1, 3])
@pytest.mark.parametrize("pool_dtype", POOL_DTYPES)
def test_a_token_alone_equals_it_in_any_batch(
    num_threads: int, num_kv_heads: int, pool_dtype: torch.dtype
) -> None:
    before = torch.get_num_threads()
    group_size = 4 if num_kv_heads == 1 else 3
    shape = Shape(num_kv_heads=num_kv_heads, group_size=group_size, pool_dtype=pool_dtype)
    scene = Scene(shape, MIXED, backend=backend)
    scene.write_past()
    expected = scene.step()
    try:
        torch.set_num_threads(num_threads)
        for index, actual in enumerate(scene.step()):
            assert torch.equal(actual, expected[index])
            row = scene.rows[index]
            for offset in {0, row.query_len // 2, row.query_len - 1}:
                position = row.kv_len - row.query_len + offset
                alone = scene.attend([(index, position, position + 1)])[0]
                assert torch.equal(alone[0], actual[offset]), (row, offset)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("sliding_window", [None, 150])
@pytest.mark.parametrize("pool_dtype", POOL_DTYPES)
def test_however_a_prompt_is_cut_its_tokens_are_the_same(
    sliding_window: int | None, pool_dtype: torch.dtype
) -> None:
    shape = Shape(sliding_window=sliding_window, pool_dtype=pool_dtype)
    expected = Scene(shape, [Row(500, 500)], backend=backend).step()[0]
    for cuts in ((0, 64, 500), (0, 1, 3, 191, 193, 384, 497, 500), (0, 250, 251, 252, 253, 257, 500)):
        scene = Scene(shape, [Row(500, 500)], backend=backend)
        pieces = [scene.attend([(0, start, end)])[0] for start, end in itertools.pairwise(cuts)]
        assert torch.equal(torch.cat(pieces), expected), cuts


@pytest.mark.parametrize("pool_dtype", POOL_DTYPES)
def test_many_rows_that_share_a_prefix(pool_dtype: torch.dtype) -> None:
    rows = [Row(1, 700)] + [Row(1 + i % 3, 600 + i, 592) for i in range(40)] + [Row(30, 640, 592)]
    scene = Scene(Shape(pool_dtype=pool_dtype), rows, backend=backend)
    scene.check(TOLERANCES[pool_dtype])
    for index, actual in enumerate(scene.step()):
        row = rows[index]
        alone = scene.attend([(index, row.kv_len - row.query_len, row.kv_len)])[0]
        assert torch.equal(alone, actual), row


def test_a_row_reads_pages_that_another_row_of_its_step_writes() -> None:
    scene = Scene(Shape(), [Row(400, 400), Row(1, 401, 400), Row(8, 408, 400)], backend=backend)
    for index, actual in enumerate(scene.step()):
        torch.testing.assert_close(actual, scene.expected(index))


def test_layers_of_different_windows_share_a_plan() -> None:
    scene = Scene(Shape(), [Row(1, 300), Row(20, 200)], backend=backend)
    scene.write_past()
    plan = scene.backend.plan(AttentionMetadata([1, 20], [300, 200], scene.page_table))
    q, k, v = (torch.cat([x[0][-1:], x[1][-20:]]) for x in (scene.q, scene.k, scene.v))
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
    scene = Scene(Shape(), [Row(1, 9), Row(6, 6)], backend=backend)
    scene.write_past()
    expected = torch.cat(scene.step())
    joint = torch.cat([torch.cat([x[0][-1:], x[1]]) for x in (scene.q, scene.k, scene.v)], dim=1)
    q, k, v = joint.split_with_sizes((9, 3, 3), 1)
    plan = scene.backend.plan(AttentionMetadata([1, 6], [9, 6], scene.page_table))
    assert torch.equal(plan(q, k, v, scene.shape.spec), expected)
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    assert torch.equal(plan(q, k, v, scene.shape.spec), expected)


@pytest.mark.parametrize("pool_dtype", POOL_DTYPES)
def test_a_token_that_is_not_finite_stays_alone(pool_dtype: torch.dtype) -> None:
    scene = Scene(Shape(pool_dtype=pool_dtype), [Row(1, 250), Row(1, 250), Row(30, 30)], backend=backend)
    scene.q[0][-1, 2, 5] = float("nan")
    scene.q[2][7, 1, 0] = float("inf")
    scene.write_past()
    first, second, third = scene.step()
    assert not first[0, 2].isfinite().any()
    assert first[0, 3:].isfinite().all()
    assert second.isfinite().all()
    assert third[:7].isfinite().all()
    assert third[8:].isfinite().all()


@pytest.mark.parametrize("pool_dtype", POOL_DTYPES)
@settings(max_examples=40)
@given(st.data())
def test_any_batch_equals_the_oracle_and_its_tokens_alone(pool_dtype: torch.dtype, data: st.DataObject) -> None:
    scene = data.draw(scenes(head_dims=(16, 64, 80), backend=backend, pool_dtype=pool_dtype))
    tolerance = TOLERANCES[pool_dtype]
    scene.write_past()
    for index, actual in enumerate(scene.step()):
        torch.testing.assert_close(actual, scene.expected(index), atol=2 * tolerance, rtol=10 * tolerance)
        row = scene.rows[index]
        for offset in {0, row.query_len - 1}:
            position = row.kv_len - row.query_len + offset
            alone = scene.attend([(index, position, position + 1)])[0]
            assert torch.equal(alone[0], actual[offset]), (row, offset)
