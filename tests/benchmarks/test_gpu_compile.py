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


@pytest.mark.slow
@pytest.mark.parametrize("target", [target for target in TARGETS if target != "sm_90"])
def test_every_kernel_compiles_for_every_target_without_spills(target: str) -> None:
    seen = set()
    for name, launch in launches(head_dims=(128,)):
        if launch.kernel in seen or "soft cap" in name:
            continue
        seen.add(launch.kernel)
        resources = compile_for(name, launch, target)
        assert resources.registers > 0
        assert resources.spilled == 0, resources


def test_the_kernels_are_all_there() -> None:
    names = [name for name, _ in launches(head_dims=(128,))]
    assert len(set(names)) == len(names)
    kernels = {launch.kernel.__name__ for _, launch in launches(head_dims=(128,))}
    assert len(kernels) == 18, kernels
