"""Many stop strings at once, one character at a time: the automaton of Aho and Corasick (CACM 18:6, 1975)."""

from collections import deque
from collections.abc import Sequence


class StopStringAutomaton:
    """Immutable. A state is an int; it stands for the longest end of the text that begins a stop string.

    ``depths[state]`` is that end's length. ``hits[state]`` is the index of the longest stop string that ends
    here, or None. Building costs the total length of the stops, a step the same small time whatever the stops.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = tuple(stops)
        self._next: list[dict[str, int]] = [{}]
        self._fallback = [0]
        self.depths = [0]
        self.hits: list[int | None] = [None]
        for index, stop in enumerate(self.stops):
            self._insert(index, stop)
        self._link()

    def step(self, state: int, character: str) -> int:
        while state and character not in self._next[state]:
            state = self._fallback[state]
        return self._next[state].get(character, 0)

    def _insert(self, index: int, stop: str) -> None:
        state = 0
        for character in stop:
            following = self._next[state].get(character)
            if following is None:
                following = self._next[state][character] = len(self._next)
                self._next.append({})
                self._fallback.append(0)
                self.depths.append(self.depths[state] + 1)
                self.hits.append(None)
            state = following
        if self.hits[state] is None:  # the first of two equal stops counts
            self.hits[state] = index

    def _link(self) -> None:
        waiting = deque(self._next[0].values())
        while waiting:
            state = waiting.popleft()
            for character, following in self._next[state].items():
                waiting.append(following)
                fallback = self.step(self._fallback[state], character)
                self._fallback[following] = fallback
                if self.hits[following] is None:
                    self.hits[following] = self.hits[fallback]
