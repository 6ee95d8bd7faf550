"""Every kernel compiles for an architecture that is not there, and spills nothing in the usual shapes."""

import pytest

pytest.importorskip("triton")

from benchmarks.gpu_compile import TARGETS, compile_for, launches


@pytest.mark.slow
def test_every_kernel_compiles_for_hopper_without_spills() -> None:
    for name, launch in launches(head_dims=(128,)):
        resources = compile_for(name, launch, "sm_90")
        assert 0 < resources.registers <= 255, resources
        if "soft cap" not in name:
            assert resources.spilled == 0, resources


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_has_a_compiler(target: str) -> None:
    by_name = dict(launches(head_dims=(128,)))
    resources = compile_for("add + rms norm", by_name["add + rms norm"], target)
    assert resources.registers > 0
    assert resources.spilled == 0
