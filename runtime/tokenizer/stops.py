"""Stop strings and stop regexes in text that arrives piece by piece."""

from collections.abc import Sequence

from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.tokenizer.stop_regex import RegexMatch, RegexProgram, RegexSearch
from ramet.runtime.tokenizer.stop_strings import StopStringAutomaton

MAX_TOTAL_INSTRUCTIONS = 4_000

_Found = tuple[int, int, int, str]
"""(end, start, order, stop) of a stop in the text: of several the least counts. Strings come before regexes."""
_STRINGS = -1


class StopMatcher:
    """Finds the first stop in a growing text and lets through the text before it.

    The rule, which does not depend on how the text is cut into pieces: the text is read character by character,
    and the stop that completes first ends it. Of stops that complete at the same character the one that began
    first counts (the longest), then strings before regexes, then the first listed. A regex thus ends at its
    shortest match: ``\\d+`` stops at the first digit. Text ends where the stop begins, or with ``include_stop``
    where it ends. A match that only the next character can decide (``\\bword\\b``) counts when that comes, or
    the end of the text.

    Text is held back only where a stop could have begun in it, and is released as soon as that is ruled out.
    With ``include_stop`` nothing is held back: text before the end of a stop stays in any case.

    Raises:
        InvalidRequestError: a regex is not valid or uses what growing text cannot decide (lookaround,
            backreferences, ``$``, atomic groups).
    """

    def __init__(
        self, stops: Sequence[str] = (), stop_regexes: Sequence[str] = (), *, include_stop: bool = False
    ) -> None:
        self._strings = StopStringAutomaton(stops)
        self._patterns = tuple(stop_regexes)
        self._searches = [RegexSearch(program) for program in _programs(stop_regexes)]
        self._include_stop = include_stop
        self._state = 0
        self._position = 0
        self._held = ""
        self._held_from = 0
        self._enabled_from = 0
        self._hit: str | None = None

    @property
    def hit(self) -> str | None:
        """The stop string or regex that was found, as given; what is pushed after it is dropped."""
        return self._hit

    def push(self, text: str, *, enabled: bool = True) -> tuple[str, str | None]:
        """The text that is now certain to stay, and the stop where one was found.

        With ``enabled`` False no stop completes in ``text`` (as before ``min_tokens``), but one that completes
        later may begin in it.
        """
        if self._hit is not None:
            return "", self._hit
        if not self._searches and not self._strings.stops:
            return text, None
        self._held += text
        if not enabled:
            self._enabled_from = self._position + len(text)
        step = self._step if self._searches else self._step_strings
        for character in text:
            found = step(character)
            if found is not None:
                return self._stop(*found)
        return self._release(self._position if self._include_stop else self._first_possible_start()), None

    def flush(self) -> tuple[str, str | None]:
        """The text that was held back, now that no more comes, and the stop that the end completes."""
        if self._hit is not None:
            return "", self._hit
        matches = [search.finish() for search in self._searches]
        found = self._first([], matches)
        return (self._release(self._position), None) if found is None else self._stop(*found)

    def _step(self, character: str) -> _Found | None:
        matches = [search.step(character) for search in self._searches]
        found = self._step_strings(character)
        return self._first([] if found is None else [found], matches)

    def _step_strings(self, character: str) -> _Found | None:
        self._position += 1
        self._state = self._strings.step(self._state, character)
        index = self._strings.hits[self._state]
        if index is None or self._position <= self._enabled_from:
            return None
        stop = self._strings.stops[index]
        return self._position, self._position - len(stop), _STRINGS, stop

    def _first(self, found: list[_Found], matches: list[list[RegexMatch]]) -> _Found | None:
        """What counts of the string that was found and of the matches of each regex."""
        for order, (pattern, completed) in enumerate(zip(self._patterns, matches, strict=True)):
            found += [(m.end, m.start, order, pattern) for m in completed if m.end > self._enabled_from]
        return min(found, default=None)

    def _first_possible_start(self) -> int:
        starts = [self._position - self._strings.depths[self._state]]
        starts += [start for search in self._searches if (start := search.earliest_start) is not None]
        return min(starts)

    def _release(self, end: int) -> str:
        count = end - self._held_from
        released, self._held = self._held[:count], self._held[count:]
        self._held_from = end
        return released

    def _stop(self, end: int, start: int, _: int, stop: str) -> tuple[str, str]:
        self._hit = stop
        safe = self._release(end if self._include_stop else start)
        self._held = ""
        return safe, stop


def _programs(patterns: Sequence[str]) -> list[RegexProgram]:
    programs = [RegexProgram(pattern) for pattern in patterns]
    size = sum(len(program.instructions) for program in programs)
    if size > MAX_TOTAL_INSTRUCTIONS:
        raise InvalidRequestError(
            f"stop_regex: the patterns need {size} states together, {MAX_TOTAL_INSTRUCTIONS} are allowed; "
            "give fewer or shorter ones",
            field="stop_regex",
        )
    return programs
