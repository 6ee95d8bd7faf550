"""Searching a text for a pattern with assertions anywhere in it: ``^``, ``$``, ``\\b`` and ``\\B``.

No plain regular expression of a reasonable size says what such a pattern does, so no engine enforces it; a
finished text can still be searched, in time linear in it, by following all states at once (Thompson 1968).
"""

from ramet.runtime.grammar.schema.automaton import TooLargeError
from ramet.runtime.grammar.schema.charset import WORD, CharSet, contains
from ramet.runtime.grammar.schema.regex_parser import Alt, Anchor, Chars, Regex, Repeat, Seq

_MAX_STATES = 40_000


class AssertingSearch:
    """One pattern, ready to search. Immutable once made, for any thread."""

    def __init__(self, tree: Regex) -> None:
        """``tree``: as parsed, without lookaheads. Raises TooLargeError."""
        self._moves: list[list[tuple[CharSet, int]]] = []
        self._free: list[list[tuple[str, int]]] = []
        """By state: (what has to hold here, or nothing; the state behind it)."""
        self._start = self._state()
        self._accept = self._add(tree, self._start)

    def finds(self, text: str) -> bool:
        """``text`` has a part that matches."""
        states: set[int] = set()
        for at in range(len(text) + 1):
            states.add(self._start)
            reached = self._closure(states, text, at)
            if self._accept in reached:
                return True
            if at < len(text):
                code = ord(text[at])
                states = {
                    target for state in reached for chars, target in self._moves[state] if contains(chars, code)
                }
        return False

    def _closure(self, states: set[int], text: str, at: int) -> set[int]:
        before = at > 0 and contains(WORD, ord(text[at - 1]))
        behind = at < len(text) and contains(WORD, ord(text[at]))
        holds = {"": True, "^": at == 0, "$": at == len(text), "b": before != behind, "B": before == behind}
        seen = set(states)
        stack = list(states)
        while stack:
            for condition, target in self._free[stack.pop()]:
                if target not in seen and holds[condition]:
                    seen.add(target)
                    stack.append(target)
        return seen

    def _state(self) -> int:
        if len(self._moves) >= _MAX_STATES:
            raise TooLargeError
        self._moves.append([])
        self._free.append([])
        return len(self._moves) - 1

    def _add(self, tree: Regex, start: int) -> int:
        """Adds ``tree`` behind the state ``start``; its end. As deep as the pattern's groups nest."""
        match tree:
            case Chars(chars):
                end = self._state()
                self._moves[start].append((chars, end))
            case Anchor(kind):
                end = self._state()
                self._free[start].append((kind, end))
            case Seq(items):
                end = start
                for item in items:
                    end = self._add(item, end)
            case Alt(items):
                end = self._state()
                for item in items:
                    self._free[self._add(item, self._branch(start))].append(("", end))
            case Repeat(item, low, high):
                end = self._repeat(item, low, high, start)
            case _:
                raise AssertionError(f"{tree!r} has no place here")
        return end

    def _branch(self, start: int) -> int:
        branch = self._state()
        self._free[start].append(("", branch))
        return branch

    def _repeat(self, item: Regex, low: int, high: int | None, start: int) -> int:
        for _ in range(low):
            start = self._add(item, self._branch(start))
        end = self._state()
        self._free[start].append(("", end))
        if high is None:
            hub = self._branch(start)
            inner = self._add(item, hub)
            self._free[inner] += [("", hub), ("", end)]
            return end
        for _ in range(high - low):
            start = self._add(item, self._branch(start))
            self._free[start].append(("", end))
        return end
