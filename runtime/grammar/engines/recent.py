"""Recent: the last results of a function of one argument."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from ramet.runtime.grammar.schema import Pace

Result = TypeVar("Result")


class Recent(Generic[Result]):
    """The results for the last ``maxsize`` texts. Thread-safe: two threads may both work the same one out."""

    def __init__(self, compute: Callable[[str, Pace | None], Result], maxsize: int) -> None:
        self._compute = compute
        self._maxsize = maxsize
        self._results: OrderedDict[str, Result] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, text: str, pace: Pace | None = None) -> Result:
        """Raises what computing it raises, OverdueError of ``pace`` too; a known result takes no time."""
        with self._lock:
            if text in self._results:
                self._results.move_to_end(text)
                return self._results[text]
        result = self._compute(text, pace)
        with self._lock:
            self._results[text] = result
            while len(self._results) > self._maxsize:
                self._results.popitem(last=False)
        return result
