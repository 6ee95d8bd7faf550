import torch

from ramet.kernels import reference as oracle
from ramet.runtime.layers.norm import RMSNorm


def test_norm_with_and_without_a_residual() -> None:
    generator = torch.Generator().manual_seed(0)
    x, residual = torch.randn((2, 5, 16), generator=generator)
    weight = torch.rand(16, generator=generator)
    norm = RMSNorm(weight, 1e-5)
    assert torch.allclose(norm(x), oracle.rms_norm(x, weight, 1e-5), atol=1e-6)
    normed, total = norm.add(x, residual)
    assert torch.equal(total, x + residual)
    assert torch.allclose(normed, oracle.rms_norm(x + residual, weight, 1e-5), atol=1e-6)


def test_heads_are_normed_one_by_one() -> None:
    heads = torch.randn((3, 4, 8), generator=torch.Generator().manual_seed(1))
    norm = RMSNorm(torch.ones(8), 1e-6)
    assert torch.allclose(norm(heads[:, 1:3])[2, 1], norm(heads[2, 2]), atol=1e-6)
