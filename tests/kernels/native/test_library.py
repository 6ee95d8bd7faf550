"""The compiled kernels against their oracles, and a row's bits in every batch."""

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ramet.kernels import linear_int8, native, reference
from ramet.kernels.native import AttentionItems, AttentionScratch, NativeLibrary
from ramet.kernels.reference import INT8_GROUP


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> NativeLibrary:
    reason = native.enable(tmp_path_factory.mktemp("kernels"))
    found = native.library()
    if found is None:
        pytest.skip(reason)
    return found


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def random_int8(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8, generator=torch.Generator().manual_seed(seed))


@given(
    num_tokens=st.integers(1, 40),
    depth=st.one_of(st.integers(1, 80), st.sampled_from([576, 1536, 4099])),
    columns=st.one_of(st.integers(1, 80), st.sampled_from([576])),
    seed=st.integers(0, 2**31),
    with_bias=st.booleans(),
)
def test_products_are_those_of_the_oracle(
    library: NativeLibrary, num_tokens: int, depth: int, columns: int, seed: int, with_bias: bool
) -> None:
    x = random(num_tokens, depth, seed=seed) * 10 ** random(num_tokens, 1, seed=seed + 1)
    x[seed % num_tokens] *= seed % 3
    weight, scale = random_int8(columns, depth, seed=seed), random(columns, seed=seed + 2).abs()
    bias = random(columns, seed=seed + 3) if with_bias else None
    got = linear_int8(x, library.pack_int8(weight, scale), scale, bias)
    expected = reference.linear_int8_grouped(x, weight, scale, bias)
    # A value on the border of two levels may round either way, which moves its token's every channel.
    level = x.abs().amax(-1, keepdim=True) / 127 * 128 * scale
    rounding = 1e-5 * (x.abs() @ weight.float().abs().t() * scale + (0 if bias is None else bias.abs()))
    assert ((got - expected).abs() <= 1.01 * level + rounding).all()
    inside = ~has_value_on_a_border(x)
    assert ((got - expected).abs() <= rounding)[inside].all()


def has_value_on_a_border(x: Tensor) -> Tensor:
    """Of each token: whether rounding one of its values to a level of its group depends on the last bits."""
    padded = torch.nn.functional.pad(x.double(), (0, -x.shape[1] % INT8_GROUP)).view(len(x), -1, INT8_GROUP)
    levels = padded * (127.0 / padded.abs().amax(-1, keepdim=True).clamp_min(1e-28))
    return ((levels - levels.floor() - 0.5).abs() < 1e-4).flatten(1).any(-1)


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_a_token_has_the_same_bits_in_every_batch_and_with_all_threads(
    library: NativeLibrary, num_threads: int
) -> None:
    x, weight, scale = random(500, 100), random_int8(70, 100), random(70, seed=2).abs()
    prepared = library.pack_int8(weight, scale)
    before = torch.get_num_threads()
    alone = torch.cat([library.linear_int8(row[None], prepared, None) for row in x])
    try:
        torch.set_num_threads(num_threads)
        for size in (2, 3, 5, 6, 7, 8, 13, 193, 500):
            parts = [library.linear_int8(part, prepared, None) for part in torch.split(x, size)]
            assert torch.equal(torch.cat(parts), alone), size
    finally:
        torch.set_num_threads(before)


def test_long_calls_have_the_bits_of_short_ones(library: NativeLibrary) -> None:
    """Short ones keep the interpreter lock, long ones give it up: both bindings are the same code."""
    x, weight, scale = random(400, 512), random_int8(512, 512), random(512).abs()
    prepared = library.pack_int8(weight, scale)
    whole = library.linear_int8(x, prepared, None)
    assert torch.equal(torch.cat([library.linear_int8(row[None], prepared, None) for row in x]), whole)
    wide = random(700, 1024)
    activated = library.gated_activation(wide, tanh_gelu=False)
    normed = library.rms_norm(wide, torch.ones(1024), 1e-6)
    for row in (0, 350, 699):
        one = wide[row : row + 1]
        assert torch.equal(library.gated_activation(one, tanh_gelu=False)[0], activated[row])
        assert torch.equal(library.rms_norm(one, torch.ones(1024), 1e-6)[0], normed[row])


def test_rows_of_zeros_and_rows_that_are_not_finite(library: NativeLibrary) -> None:
    weight, scale = random_int8(40, 50), random(40).abs()
    x = random(5, 50)
    x[0] = 0
    x[1, 3] = float("inf")
    x[2, 4] = float("nan")
    x[3] = 1e-45
    out = library.linear_int8(x, library.pack_int8(weight, scale), None)
    assert torch.equal(out[0], torch.zeros(40))
    assert not out[1].isfinite().any()
    assert not out[2].isfinite().any()
    assert out[3:].isfinite().all()


@given(
    num_tokens=st.integers(1, 20),
    groups=st.integers(1, 20),
    columns=st.one_of(st.integers(1, 80), st.sampled_from([576])),
    seed=st.integers(0, 2**31),
    with_bias=st.booleans(),
)
def test_products_of_four_bits_are_those_of_the_oracle_and_of_the_token_alone(
    library: NativeLibrary, num_tokens: int, groups: int, columns: int, seed: int, with_bias: bool
) -> None:
    depth = groups * reference.INT4_GROUP
    x = random(num_tokens, depth, seed=seed) * 10 ** random(num_tokens, 1, seed=seed + 1)
    stored = reference.quantize_int4(random(columns, depth, seed=seed + 2))
    bias = random(columns, seed=seed + 3) if with_bias else None
    prepared = library.pack_int4(*stored)
    got = library.linear_int4(x, prepared, bias)
    expected = reference.linear_int4(x, *stored, bias)
    # Activations are rounded to half a level.
    half = (x.abs().amax(-1, keepdim=True) / 254) * reference.dequantize_int4(*stored).abs().sum(-1)
    assert ((got - expected).abs() <= 1.01 * half + 1e-5).all()
    assert torch.equal(torch.cat([library.linear_int4(row[None], prepared, bias) for row in x]), got)


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_long_products_of_four_bits_are_those_of_their_parts(library: NativeLibrary, num_threads: int) -> None:
    x, before = random(400, 512), torch.get_num_threads()
    prepared = library.pack_int4(*reference.quantize_int4(random(512, 512, seed=1)))
    expected = library.linear_int4(x, prepared, None)
    try:
        torch.set_num_threads(num_threads)
        for size in (1, 5, 8, 193, 400):
            parts = [library.linear_int4(part, prepared, None) for part in torch.split(x, size)]
            assert torch.equal(torch.cat(parts), expected), size
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("width", [1, 15, 16, 49152])
def test_rows_that_are_finite_are_told_from_others(library: NativeLibrary, width: int) -> None:
    x = torch.full((7, width), torch.finfo(torch.float32).max)
    x[1] = 0.0
    x[2], x[3], x[4, -1], x[5, 0] = torch.nan, torch.inf, -torch.inf, -torch.nan
    assert library.finite_rows(x).tolist() == [True, True, False, False, False, False, True]
    assert library.finite_rows(x.t().contiguous().t()).tolist() == [
        True,
        True,
        False,
        False,
        False,
        False,
        True,
    ]
    assert library.finite_rows(x[:0]).tolist() == []
    with pytest.raises(ValueError, match="does not fit"):
        library.finite_rows(x.double())


def test_inputs_that_are_not_contiguous_and_of_other_dtypes(library: NativeLibrary) -> None:
    weight, scale = random_int8(60, 50), random(60).abs()
    prepared = library.pack_int8(weight.t().contiguous().t(), scale)
    x = random(50, 8).t()
    expected = library.linear_int8(x.contiguous(), library.pack_int8(weight, scale), None)
    assert torch.equal(library.linear_int8(x, prepared, None), expected)
    half = linear_int8(x.to(torch.bfloat16), prepared, scale)
    assert half.dtype is torch.bfloat16
    assert torch.equal(half, library.linear_int8(x.to(torch.bfloat16).float(), prepared, None).bfloat16())


def test_what_does_not_fit_is_refused_and_not_read_beyond_its_end(library: NativeLibrary) -> None:
    prepared = library.pack_int8(random_int8(8, 16), random(8))
    q, k, v, half = random(3, 4, 16), random(3, 2, 16), random(3, 2, 16), random(3, 8)
    pool = (random(9, 2, 16), random(9, 2, 16))
    items = AttentionItems(
        slots=np.arange(3),
        items=np.array([[0, 3, 0, 3]]),
        pairs=np.array([[0, 0, 1, 0], [1, 0, 2, 1], [2, 0, 3, 2]], np.int32),
        folds=np.array([[0, 1], [1, 1], [2, 1]]),
        num_partials=3,
        max_pairs=3,
    )
    written, scratch = torch.arange(3), AttentionScratch()
    four = reference.quantize_int4(random(8, 32))

    def attend(
        *heads: Tensor,
        pool: tuple[Tensor, Tensor] = pool,
        written: Tensor = written,
        scale: float = 1.0,
    ) -> Tensor:
        q, k, v = heads
        return library.attention((q, k, v), pool, written, items, scratch, scale=scale, softcap=None)

    assert attend(q, k, v).isfinite().all()
    wrong: list[Callable[[], object]] = [
        lambda: attend(q, k, v, scale=-1.0),
        lambda: attend(q, k, v, scale=0.0),
        lambda: library.pack_int8(random(8, 16), random(8)),
        lambda: library.pack_int8(random_int8(8, 16), random(7)),
        lambda: library.pack_int8(random_int8(8, 16), random(8).double()),
        lambda: library.linear_int8(random(3, 15), prepared, None),
        lambda: library.pack_int4(four[0][:, :15], four[1]),
        lambda: library.pack_int4(four[0], four[1][:7]),
        lambda: library.pack_int4(four[0].to(torch.int8), four[1]),
        lambda: library.linear_int4(random(3, 31), library.pack_int4(*four), None),
        lambda: library.linear_int4(random(3, 32), library.pack_int4(*four), random(7)),
        lambda: library.linear_int8(random(1, 3, 16), prepared, None),
        lambda: library.linear_int8(random(3, 16), prepared, random(7)),
        lambda: library.rms_norm(random(3, 16), random(15), 1e-5),
        lambda: library.add_rms_norm(random(3, 16), random(3, 16), random(15), 1e-5),
        lambda: library.add_rms_norm(random(3, 16), random(2, 16), random(16), 1e-5),
        lambda: library.apply_rope(q, random(2, 2, 16), half, half),
        lambda: library.apply_rope(q, random(3, 2, 8), half, half),
        lambda: library.apply_rope(q, k, random(2, 8), half),
        lambda: library.apply_rope(q, k, half, half.double()),
        lambda: library.gated_activation(random(3, 15), tanh_gelu=False),
        lambda: attend(q, random(2, 2, 16), v),
        lambda: attend(q, k, random(3, 2, 8)),
        lambda: attend(q.double(), k, v),
        lambda: attend(random(3, 4, 8), random(3, 2, 8), random(3, 2, 8)),
        lambda: attend(random(3, 3, 16), k, v),
        lambda: attend(q, k, v, pool=(random(9, 1, 16), random(9, 1, 16))),
        lambda: attend(q, k, v, pool=(random(9, 2, 16), random(8, 2, 16))),
        lambda: attend(q, k, v, written=torch.arange(2)),
    ]
    for call in wrong:
        with pytest.raises(ValueError, match="does not fit"):
            call()


def test_no_tokens(library: NativeLibrary) -> None:
    prepared = library.pack_int8(random_int8(4, 3), torch.ones(4))
    assert library.linear_int8(torch.empty(0, 3), prepared, None).shape == (0, 4)


WIDTHS = [1, 5, 16, 63, 64, 576, 1000]


@pytest.mark.parametrize("width", WIDTHS)
def test_norms(library: NativeLibrary, width: int) -> None:
    x, residual, weight = random(9, width) * 5, random(9, width, seed=1), random(width, seed=2)
    torch.testing.assert_close(library.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))
    normed, total = library.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(total, x + residual)
    torch.testing.assert_close(normed, reference.rms_norm(total, weight, 1e-5))
    assert torch.equal(library.rms_norm(total, weight, 1e-5), normed)
    heads = random(4, 3, 2 * width)[..., :width]
    torch.testing.assert_close(library.rms_norm(heads, weight, 1e-5), reference.rms_norm(heads, weight, 1e-5))
    assert torch.equal(library.rms_norm(torch.zeros(2, width), weight, 1e-5), torch.zeros(2, width))


@pytest.mark.parametrize("head_dim", [2, 32, 64, 80, 128])
def test_rope(library: NativeLibrary, head_dim: int) -> None:
    joint = random(7, 5, head_dim)
    q, k, angles = joint[:, :3], joint[:, 3:], random(7, head_dim // 2, seed=1)
    before = joint.clone()
    expected = reference.apply_rope(q, k, angles.cos(), angles.sin())
    for actual, wanted in zip(library.apply_rope(q, k, angles.cos(), angles.sin()), expected, strict=True):
        torch.testing.assert_close(actual, wanted)
    assert torch.equal(joint, before)
    apart = library.apply_rope(q.contiguous(), k.contiguous(), angles.cos(), angles.sin())
    for actual, wanted in zip(apart, expected, strict=True):
        torch.testing.assert_close(actual, wanted)


@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("width", WIDTHS)
def test_gated_activations(library: NativeLibrary, kind: str, width: int) -> None:
    gate_up = random(6, 2 * width) * 4
    actual = library.gated_activation(gate_up, tanh_gelu=kind == "gelu_tanh")
    torch.testing.assert_close(actual, reference.gated_activation(gate_up, kind))


@pytest.mark.parametrize("tanh_gelu", [False, True])
def test_activations_of_all_magnitudes(library: NativeLibrary, tanh_gelu: bool) -> None:
    gate = torch.cat((torch.logspace(-38, 38, 500), torch.tensor([0.0, float("inf"), float("nan")])))
    gate = torch.cat((gate, -gate))
    actual = library.gated_activation(torch.cat((gate, torch.ones_like(gate)))[None], tanh_gelu=tanh_gelu)[0]
    expected = (_gelu_tanh if tanh_gelu else torch.nn.functional.silu)(gate.double()).float()
    finite = expected.isfinite()
    # torch's 1 + tanh cancels where the result is this small.
    atol = 1e-15 if tanh_gelu else 1e-37
    torch.testing.assert_close(actual[finite], expected[finite], rtol=2e-6, atol=atol)
    assert actual[gate.isnan()].isnan().all()


def _gelu_tanh(x: Tensor) -> Tensor:
    return torch.nn.functional.gelu(x, approximate="tanh")


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_a_row_has_the_same_bits_in_every_batch(library: NativeLibrary, num_threads: int) -> None:
    x, weight = random(300, 600), random(300, seed=1)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(num_threads)
        whole = library.gated_activation(x, tanh_gelu=False)
        normed = library.rms_norm(whole, weight, 1e-6)
        for row in (0, 1, 151, 299):
            alone = library.gated_activation(x[row : row + 1], tanh_gelu=False)
            assert torch.equal(alone[0], whole[row])
            assert torch.equal(library.rms_norm(alone, weight, 1e-6)[0], normed[row])
    finally:
        torch.set_num_threads(before)


def test_threads_may_call_at_once(library: NativeLibrary) -> None:
    weight, scale = random_int8(300, 200), random(300).abs()
    prepared = library.pack_int8(weight, scale)
    inputs = [random(1 + 7 * index, 200, seed=index) for index in range(4)]
    expected = [library.linear_int8(x, prepared, None) for x in inputs]

    def work(index: int) -> bool:
        return all(
            torch.equal(library.linear_int8(inputs[index], prepared, None), expected[index]) for _ in range(100)
        )

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(4)))


FORKING = """
import os, sys
from pathlib import Path
import torch
from ramet.kernels import native
torch.set_num_threads(2)
assert not native.enable(Path(sys.argv[1]))
library = native.library()
x = torch.ones(20, 64)
prepared = library.pack_int8(torch.ones(512, 64, dtype=torch.int8), torch.ones(512))
expected = library.linear_int8(x, prepared, None)
child = os.fork()
same = torch.equal(library.linear_int8(x, prepared, None), expected)
if child == 0:
    os._exit(0 if same else 1)
assert same
assert os.waitpid(child, 0)[1] == 0
print("both")
"""


def test_a_forked_process_has_helpers_of_its_own(library: NativeLibrary) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKING, str(library.path.parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "both\n", done.stderr
