"""Which version of an op runs."""

import importlib
from types import ModuleType

import pytest
import torch
from torch import Tensor

from ramet import kernels
from ramet.kernels import cpu, dispatch, native, reference
from ramet.kernels.int8 import GPU_MAX_DEPTH


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_fp32_on_cpu_takes_the_compiled_version_else_the_cpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    native.enable(tmp_path_factory.mktemp("kernels"))
    x, residual, weight = random(5, 64), random(5, 64, seed=1), random(64, seed=2)
    q, k, angles = x.view(5, 2, 32), residual.view(5, 2, 32), random(5, 16, seed=3)

    def results() -> list[Tensor]:
        return [
            kernels.rms_norm(x, weight, 1e-5),
            *kernels.add_rms_norm(x, residual, weight, 1e-5),
            kernels.gated_activation(x, "silu"),
            *kernels.apply_rope(q, k, angles.cos(), angles.sin()),
        ]

    library = native.library()
    if library is not None:
        compiled = [
            library.rms_norm(x, weight, 1e-5),
            *library.add_rms_norm(x, residual, weight, 1e-5),
            library.gated_activation(x, tanh_gelu=False),
            *library.apply_rope(q, k, angles.cos(), angles.sin()),
        ]
        assert all(map(torch.equal, results(), compiled))
    monkeypatch.setattr(native, "library", lambda: None)
    plain = [
        cpu.rms_norm(x, weight, 1e-5),
        *cpu.add_rms_norm(x, residual, weight, 1e-5),
        cpu.gated_activation(x, "silu"),
        *cpu.apply_rope(q, k, angles.cos(), angles.sin()),
    ]
    assert all(map(torch.equal, results(), plain))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_takes_the_oracles_path(dtype: torch.dtype) -> None:
    x, weight = random(7, 64).to(dtype), random(64, seed=1)
    assert torch.equal(kernels.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))
    assert torch.equal(kernels.gated_activation(x, "silu"), reference.gated_activation(x, "silu"))
    q, k = x.view(7, 2, 32), x.view(7, 2, 32)
    angles = random(7, 16, seed=2)
    actual = kernels.apply_rope(q, k, angles.cos(), angles.sin())
    assert torch.equal(actual[0], reference.apply_rope(q, k, angles.cos(), angles.sin())[0])
    normed, total = kernels.add_rms_norm(x, x, weight, 1e-5)
    assert total.dtype == normed.dtype == dtype


def test_the_gpus_limit_is_the_kernels() -> None:
    pytest.importorskip("triton")
    assert dispatch.triton_module() is gpu_kernels()
    assert importlib.import_module("ramet.kernels.gpu.linear_int8").MAX_DEPTH == GPU_MAX_DEPTH
    assert gpu_kernels().MAX_HIDDEN == dispatch.GPU_MAX_HIDDEN
    assert dispatch.gpu_kernels(random(2, 8)) is None


def gpu_kernels() -> ModuleType:
    return importlib.import_module("ramet.kernels.gpu")


def test_a_bitmask_where_there_is_no_kernel() -> None:
    logits = torch.zeros(2, 5)
    kernels.apply_bitmask(logits, 1, torch.tensor([[0b10010]], dtype=torch.int32))
    assert logits.isinf().tolist() == [[False] * 5, [True, False, True, True, False]]


def test_experts_where_there_is_no_kernel() -> None:
    assert not kernels.has_gpu_kernels(torch.device("cpu"))
    x, gate_up, down = random(2, 8), random(3, 8, 8, seed=1), random(3, 8, 4, seed=2)
    shares, chosen = torch.full((2, 1), 0.5), torch.tensor([[2], [0]])
    expected = reference.fused_experts(x, gate_up, down, shares, chosen, "silu")
    assert torch.equal(kernels.fused_experts(x, (gate_up, down), None, shares, chosen, "silu"), expected)
    stored = [reference.quantize_heads_int8(weight) for weight in (gate_up, down)]
    weights, scales = ((stored[0][i], stored[1][i]) for i in (0, 1))
    found = kernels.fused_experts(x, weights, scales, shares, chosen, "silu")
    torch.testing.assert_close(found, expected, atol=0.02, rtol=0.02)
