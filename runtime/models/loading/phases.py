"""How long each part of a load takes, and telling whoever waits."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor

Progress = Callable[[str, float], None]
"""Called with the phase's name and its fraction done, 0 to 1; from the loading thread."""


class PhaseClock:
    """Seconds spent in each phase. Mutable: a load writes to it as it goes."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a block; its own nested phases are subtracted, so that the seconds add up to the whole."""
        self.report(name, 0.0)
        before = sum(self.seconds.values())
        start = time.perf_counter()
        try:
            yield
        finally:
            nested = sum(self.seconds.values()) - before
            self.add(name, time.perf_counter() - start - nested)
        self.report(name, 1.0)

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def report(self, name: str, fraction: float) -> None:
        if self._progress is not None:
            self._progress(name, fraction)


class TimedTensors(Mapping[str, Tensor]):
    """Passes tensors on and counts the time that getting them takes as a phase of its own."""

    def __init__(self, tensors: Mapping[str, Tensor], clock: PhaseClock, phase: str) -> None:
        self._tensors = tensors
        self._clock = clock
        self._phase = phase
        self._num_read = 0

    def __getitem__(self, name: str) -> Tensor:
        start = time.perf_counter()
        tensor = self._tensors[name]
        self._clock.add(self._phase, time.perf_counter() - start)
        self._num_read += 1
        self._clock.report(self._phase, min(1.0, self._num_read / len(self._tensors)))
        return tensor

    def __contains__(self, name: object) -> bool:
        return name in self._tensors  # Mapping's own would read the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)
