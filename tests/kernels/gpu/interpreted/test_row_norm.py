"""RMS norms against the oracle."""

import pytest
import torch

from ramet.kernels import reference
from ramet.kernels.gpu import row_norm

TOLERANCE = {torch.float32: 1e-6, torch.float16: 2e-3}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("shape", [(1, 64), (3, 576), (2, 3, 80), (0, 64)])
def test_equals_the_oracle(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, residual = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    weight = torch.randn(shape[-1])
    limit = TOLERANCE[dtype]
    torch.testing.assert_close(
        row_norm.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5), atol=limit, rtol=limit
    )
    normed, total = row_norm.add_rms_norm(x, residual, weight, 1e-5)
    expected, expected_total = reference.add_rms_norm(x, residual, weight, 1e-5)
    torch.testing.assert_close(normed, expected, atol=limit, rtol=limit)
    assert torch.equal(total, expected_total)


def test_heads_inside_a_joint_projection_and_a_row_alone() -> None:
    heads = torch.randn(3, 5, 64)
    q = heads[:, :3]
    weight = torch.randn(64)
    normed = row_norm.rms_norm(q, weight, 1e-5)
    torch.testing.assert_close(normed, reference.rms_norm(q, weight, 1e-5), atol=1e-6, rtol=1e-6)
    assert torch.equal(row_norm.rms_norm(q[1:2], weight, 1e-5)[0], normed[1])


def test_wrong_arguments_are_refused() -> None:
    x = torch.randn(2, 8)
    with pytest.raises(ValueError, match="a weight of"):
        row_norm.rms_norm(x, torch.ones(9), 1e-5)
    with pytest.raises(ValueError, match="must be equal"):
        row_norm.add_rms_norm(x, x.half(), torch.ones(8), 1e-5)
    with pytest.raises(ValueError, match=r"x\.contiguous"):
        row_norm.rms_norm(x.t().contiguous().t(), torch.ones(8), 1e-5)
