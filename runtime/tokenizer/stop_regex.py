"""Regular expressions searched in text that is still growing.

Python's ``re`` can neither say whether a match could still begin in the text so far, nor be stopped when a
pattern backtracks without end. So a pattern is run as a nondeterministic automaton, all its states at once
(Thompson, CACM 11:6, 1968): each character costs time in proportion to the pattern, whatever the text.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from re import _constants as opcodes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.protocol.nesting import MAX_GROUP_NESTING, groups_nested

MAX_INSTRUCTIONS = 2_000
"""Of one pattern. The worst text makes each of them cost about a microsecond per character."""

_UNDECIDABLE = {
    opcodes.ASSERT: "a lookaround",
    opcodes.ASSERT_NOT: "a lookaround",
    opcodes.GROUPREF: "a backreference",
    opcodes.GROUPREF_EXISTS: "a conditional group",
    opcodes.ATOMIC_GROUP: "an atomic group",
    opcodes.POSSESSIVE_REPEAT: "a possessive quantifier",
}
_CATEGORIES = {
    opcodes.CATEGORY_DIGIT: r"\d",
    opcodes.CATEGORY_NOT_DIGIT: r"\D",
    opcodes.CATEGORY_SPACE: r"\s",
    opcodes.CATEGORY_NOT_SPACE: r"\S",
    opcodes.CATEGORY_WORD: r"\w",
    opcodes.CATEGORY_NOT_WORD: r"\W",
}


@dataclass(frozen=True, slots=True)
class Consume:
    """Goes to ``then`` with one character for which ``matches`` holds."""

    matches: Callable[[str], bool]
    then: int


@dataclass(frozen=True, slots=True)
class Assert:
    """Goes to ``then`` between two characters (None: an end of the text) for which ``holds``."""

    holds: Callable[[str | None, str | None], bool]
    needs_next: bool
    then: int


@dataclass(slots=True)
class Split:
    """Goes to each of ``then``."""

    then: list[int]


@dataclass(frozen=True, slots=True)
class Accept:
    """The pattern has matched."""


Instruction = Consume | Assert | Split | Accept


class RegexProgram:
    """A stop regex as instructions; ``entry`` is the first. Immutable once built.

    Raises:
        InvalidRequestError: the pattern is not valid, too large, or uses what growing text cannot decide.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.instructions: list[Instruction] = [Accept()]
        if (depth := groups_nested(pattern)) > MAX_GROUP_NESTING:
            raise self._error(f"nests {depth} groups; at most {MAX_GROUP_NESTING} are taken")
        try:
            tree = parser.parse(pattern)
        except (re.error, OverflowError) as error:
            raise self._error(f"is not a valid regular expression: {error}") from None
        self.entry = self._sequence(tree, 0, tree.state.flags)
        self._closures = [self._fixed_closure(at) for at in range(len(self.instructions))]

    def closure(
        self, at: int, before: str | None, after: str | None = None, *, decide: bool = False
    ) -> Iterable[int]:
        """The instructions reached from ``at`` without taking a character: Consume, Accept (0), and undecided
        Assert.

        ``before`` and ``after`` are the neighbouring characters; without ``decide`` the one after is not known
        yet.
        """
        fixed = self._closures[at]
        return self._walk(at, before, after, decide) if fixed is None else fixed

    def _fixed_closure(self, at: int) -> tuple[int, ...] | None:
        """The closure, where no neighbouring character matters to it."""
        reached = tuple(self._walk(at, None, None, False))
        passed_assertion = any(isinstance(self.instructions[i], Assert) for i in self._through(at))
        return None if passed_assertion else reached

    def _through(self, at: int) -> set[int]:
        """Every instruction on a way from ``at`` that takes no character."""
        pending, seen = [at], {at}
        while pending:
            instruction = self.instructions[pending.pop()]
            following = instruction.then if isinstance(instruction, Split) else []
            if isinstance(instruction, Assert):
                following = [instruction.then]
            pending += [index for index in following if index not in seen]
            seen.update(following)
        return seen

    def _walk(self, at: int, before: str | None, after: str | None, decide: bool) -> Iterator[int]:
        pending, seen = [at], {at}
        while pending:
            at = pending.pop()
            following: list[int] = []
            match self.instructions[at]:
                case Split(then):
                    following = then
                case Assert(holds, needs_next, then) if decide or not needs_next:
                    following = [then] if holds(before, after) else []
                case _:
                    yield at
            for index in following:
                if index not in seen:
                    seen.add(index)
                    pending.append(index)

    def _error(self, message: str) -> InvalidRequestError:
        return InvalidRequestError(f"stop_regex {self.pattern[:80]!r} {message}", field="stop_regex")

    def _emit(self, instruction: Instruction) -> int:
        if len(self.instructions) >= MAX_INSTRUCTIONS:
            raise self._error(f"needs more than {MAX_INSTRUCTIONS} states; shorten it or its counted repeats")
        self.instructions.append(instruction)
        return len(self.instructions) - 1

    def _sequence(self, items: Iterable[tuple[Any, Any]], then: int, flags: int) -> int:
        """Instructions for ``items`` that go on to ``then``; built from the last to the first."""
        for opcode, value in reversed(list(items)):
            then = self._item(opcode, value, then, flags)
        return then

    def _item(self, opcode: Any, value: Any, then: int, flags: int) -> int:
        if opcode in _UNDECIDABLE:
            raise self._error(
                f"uses {_UNDECIDABLE[opcode]}, which cannot be searched in growing text; rewrite it"
            )
        if opcode is opcodes.SUBPATTERN:
            _, added, removed, items = value
            if added & (re.ASCII | re.UNICODE):  # one of the two, the inner one
                flags &= ~(re.ASCII | re.UNICODE)
            return self._sequence(items, then, (flags | added) & ~removed)
        if opcode is opcodes.BRANCH:
            return self._emit(Split([self._sequence(branch, then, flags) for branch in value[1]]))
        if opcode in (opcodes.MAX_REPEAT, opcodes.MIN_REPEAT):
            least, most, items = value
            return self._repeat(int(least), None if most is parser.MAXREPEAT else int(most), items, then, flags)
        if opcode is opcodes.AT:
            return self._emit(self._assertion(value, then, flags))
        if opcode is opcodes.FAILURE:
            return self._emit(Split([]))
        return self._emit(Consume(_character_test(opcode, value, flags), then))

    def _repeat(self, least: int, most: int | None, items: Any, then: int, flags: int) -> int:
        if most is None:
            loop = Split([then])
            at = self._emit(loop)
            loop.then.append(self._sequence(items, at, flags))
            then = at
        else:
            end = then
            for _ in range(most - least):
                then = self._emit(Split([end, self._sequence(items, then, flags)]))
        for _ in range(least):
            repeated = self._sequence(items, then, flags)
            if repeated == then:  # repeating nothing, however often
                break
            then = repeated
        return then

    def _assertion(self, kind: Any, then: int, flags: int) -> Assert:
        if kind is opcodes.AT_BEGINNING and flags & re.MULTILINE:
            return Assert(lambda before, _: before in (None, "\n"), False, then)
        if kind in (opcodes.AT_BEGINNING, opcodes.AT_BEGINNING_STRING):
            return Assert(lambda before, _: before is None, False, then)
        if kind in (opcodes.AT_BOUNDARY, opcodes.AT_NON_BOUNDARY):
            is_word = _set_test([(opcodes.CATEGORY, opcodes.CATEGORY_WORD)], flags)
            differs = kind is opcodes.AT_BOUNDARY

            def holds(before: str | None, after: str | None) -> bool:
                return (_in(before, is_word) != _in(after, is_word)) == differs

            return Assert(holds, True, then)
        raise self._error("uses $ or \\Z: the end is not known while text is generated; remove it")


@dataclass(frozen=True, slots=True)
class RegexMatch:
    start: int
    end: int


class RegexSearch:
    """One program on one growing text. ``step`` takes the next character; matches are reported as they
    complete.

    Of the matches that complete at the same place the one that began first is reported.
    """

    def __init__(self, program: RegexProgram) -> None:
        self._program = program
        self._position = 0
        self._before: str | None = None
        # Waiting instruction (Consume, or Assert that needs the next character) -> where its match began.
        # In ascending order of the beginnings.
        self._threads: dict[int, int] = {}

    @property
    def earliest_start(self) -> int | None:
        """Where the earliest match that is still possible begins; None where none has begun."""
        return next(iter(self._threads.values()), None)

    def step(self, character: str) -> list[RegexMatch]:
        """Take one character: the match that it shows to have completed before it, and the one it completes."""
        matches = self._settle(character)
        moved: dict[int, int] = {}
        accepted: int | None = None
        for at, start in self._threads.items():
            instruction = self._program.instructions[at]
            assert isinstance(instruction, Consume)
            if instruction.matches(character):
                for reached in self._program.closure(instruction.then, character):
                    if reached == 0:
                        accepted = start if accepted is None else accepted
                    else:
                        moved.setdefault(reached, start)
        self._threads = moved
        self._position += 1
        self._before = character
        return matches if accepted is None else [*matches, RegexMatch(accepted, self._position)]

    def finish(self) -> list[RegexMatch]:
        """The text has ended: the match that this completes."""
        return self._settle(None)

    def _settle(self, after: str | None) -> list[RegexMatch]:
        """Let a match begin here, and decide what had to wait for the next character."""
        position = self._position
        settled: dict[int, int] = {}
        accepted: int | None = None
        for at, start in [*self._threads.items(), (self._program.entry, position)]:
            for reached in self._program.closure(at, self._before, after, decide=True):
                if reached != 0:
                    settled.setdefault(reached, start)
                elif start < position and accepted is None:  # an empty match is none: every text has one
                    accepted = start
        self._threads = settled
        return [] if accepted is None else [RegexMatch(accepted, position)]


def _in(character: str | None, test: Callable[[str], bool]) -> bool:
    return character is not None and test(character)


def _character_test(opcode: Any, value: Any, flags: int) -> Callable[[str], bool]:
    """Whether one character matches a node of the parse tree."""
    if opcode is opcodes.ANY:
        return (lambda _: True) if flags & re.DOTALL else (lambda character: character != "\n")
    if opcode is opcodes.IN:
        return _set_test(value, flags)
    if opcode is opcodes.LITERAL:
        return _set_test([(opcode, value)], flags)
    assert opcode is opcodes.NOT_LITERAL, opcode
    return _set_test([(opcodes.NEGATE, None), (opcodes.LITERAL, value)], flags)


def _set_test(items: list[tuple[Any, Any]], flags: int) -> Callable[[str], bool]:
    """``re`` itself decides about one character: its rules for case reach beyond str.lower and str.upper."""
    if not flags & re.IGNORECASE and all(opcode is opcodes.LITERAL for opcode, _ in items):
        return frozenset(chr(value) for _, value in items).__contains__
    source = "".join(_set_source(opcode, value) for opcode, value in items)
    fullmatch = re.compile(f"[{source}]", flags & (re.IGNORECASE | re.ASCII)).fullmatch
    return lambda character: fullmatch(character) is not None


def _set_source(opcode: Any, value: Any) -> str:
    if opcode is opcodes.NEGATE:
        return "^"
    if opcode is opcodes.LITERAL:
        return f"\\U{value:08x}"
    if opcode is opcodes.RANGE:
        return f"\\U{value[0]:08x}-\\U{value[1]:08x}"
    return _CATEGORIES[value]
