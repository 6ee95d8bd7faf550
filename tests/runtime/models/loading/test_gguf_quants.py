import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from ramet.runtime.models.loading import gguf_quants
from ramet.runtime.models.loading.gguf_quants import BlockLayout, GgufFormatError, block_layout, dequantise

QUANTISED_IN_PYTHON = [Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0]
K_QUANTS = [Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K]
OTHERS = [Kind.IQ4_NL, Kind.IQ4_XS, Kind.IQ3_S, Kind.IQ2_XXS, Kind.TQ1_0, Kind.TQ2_0, Kind.MXFP4]
FLOATS = {Kind.F32: torch.float32, Kind.F16: torch.float16, Kind.BF16: torch.bfloat16}


def random_blocks(layout: BlockLayout, num_rows: int, blocks_per_row: int, seed: int = 0) -> np.ndarray:
    """Any bytes are valid blocks; the scales among them may be NaN."""
    shape = (num_rows, blocks_per_row * layout.block_bytes)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize("kind", [*QUANTISED_IN_PYTHON, *K_QUANTS, *OTHERS], ids=lambda kind: kind.name)
@pytest.mark.parametrize(("num_rows", "blocks_per_row"), [(1, 1), (7, 3), (40, 5)])
def test_blocks_decode_as_the_package_decodes_them(kind: Kind, num_rows: int, blocks_per_row: int) -> None:
    layout = block_layout(int(kind))
    raw = random_blocks(layout, num_rows, blocks_per_row)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(raw, kind)
    got = dequantise(memoryview(bytearray(raw)), layout, (num_rows, blocks_per_row * layout.block_size))
    assert got.dtype == torch.float32
    np.testing.assert_array_equal(got.numpy(), expected)


@pytest.mark.parametrize("num_blocks", [1, 127, 128, 129, 300])
def test_regrouping_rows_changes_nothing(num_blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_quants, "_CHUNK_VALUES", 1 << 12)
    layout = block_layout(int(Kind.Q4_1))
    raw = random_blocks(layout, num_blocks, 1)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(raw, Kind.Q4_1)
    got = dequantise(memoryview(bytearray(raw)), layout, (num_blocks, 32))
    np.testing.assert_array_equal(got.numpy(), expected)


@pytest.mark.parametrize("kind", FLOATS, ids=lambda kind: kind.name)
def test_floats_keep_their_dtype_and_their_memory(kind: Kind) -> None:
    values = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    raw = bytearray(gguf.quants.quantize(values, kind).tobytes())
    got = dequantise(memoryview(raw), block_layout(int(kind)), (4, 6))
    assert got.dtype == FLOATS[kind]
    assert torch.equal(got, torch.from_numpy(values).to(FLOATS[kind]))
    raw[:] = bytes(len(raw))
    assert not got.any()


def test_quantised_values_are_near_the_originals() -> None:
    values = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    for kind, bound in ((Kind.Q4_0, 0.3), (Kind.Q5_1, 0.15), (Kind.Q8_0, 0.02)):
        raw = bytearray(gguf.quants.quantize(values, kind).tobytes())
        got = dequantise(memoryview(raw), block_layout(int(kind)), (8, 64))
        assert np.abs(got.numpy() - values).max() < bound


def test_unknown_and_undecodable_types_are_refused() -> None:
    with pytest.raises(GgufFormatError, match="tensor type 4096 is unknown"):
        block_layout(4096)
    with pytest.raises(GgufFormatError, match="I32 cannot be decoded"):
        block_layout(int(Kind.I32))
