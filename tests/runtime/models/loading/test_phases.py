import time

import pytest
import torch

from ramet.runtime.models.loading.phases import PhaseClock, TimedTensors


def test_nested_phases_are_counted_once() -> None:
    clock = PhaseClock(None)
    start = time.perf_counter()
    with clock.phase("outer"):
        time.sleep(0.01)
        with clock.phase("inner"):
            time.sleep(0.02)
        clock.add("inner", 0.005)
    total = time.perf_counter() - start
    assert clock.seconds["inner"] > clock.seconds["outer"] - 0.005 >= 0
    assert sum(clock.seconds.values()) <= total + 0.001


def test_phases_of_one_name_add_up_and_errors_are_timed() -> None:
    clock = PhaseClock(None)
    with clock.phase("x"):
        pass
    first = clock.seconds["x"]
    with pytest.raises(KeyError), clock.phase("x"):
        raise KeyError
    assert clock.seconds["x"] > first


def test_progress_goes_from_zero_to_one() -> None:
    heard: list[tuple[str, float]] = []
    clock = PhaseClock(lambda phase, fraction: heard.append((phase, fraction)))
    with clock.phase("prepare"):
        tensors = TimedTensors({"a": torch.zeros(1), "b": torch.ones(1)}, clock, "decode")
        assert "a" in tensors
        assert "c" not in tensors
        assert len(tensors) == 2
        assert list(tensors) == ["a", "b"]
        assert torch.equal(tensors["b"], torch.ones(1))
        _ = tensors["a"], tensors["a"]
    assert heard == [("prepare", 0.0), ("decode", 0.5), ("decode", 1.0), ("decode", 1.0), ("prepare", 1.0)]
    assert set(clock.seconds) == {"prepare", "decode"}
