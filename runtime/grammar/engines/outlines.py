"""OutlinesBackend: regular expressions enforced by outlines-core.

It builds an automaton over all tokens, which takes all time and memory for ordinary repeats and Unicode
classes, and its JSON schemas let invalid JSON through. So it is used when asked for by name, and for
expressions that stay small.
"""

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ramet.runtime.grammar.engines.full_pattern import full_pattern, literal_pattern, refuse
from ramet.runtime.grammar.engines.guarded import GuardedMatcher
from ramet.runtime.grammar.engines.spellings import Spellings
from ramet.runtime.grammar.token_table import AllowedTokens
from ramet.runtime.protocol import Choice, InvalidRequestError, Regex, UnsupportedConstraintError

if TYPE_CHECKING:
    from outlines_core import Index, Vocabulary

MAX_PATTERN = 500
"""Characters."""
MAX_REPEATS = 64
SMALL_CLASSES = frozenset({"."})
"""Of which an automaton over UTF-8 stays small."""


def outlines_pattern(spec: Regex | Choice) -> str:
    """The pattern that outlines-core is given. Raises UnsupportedConstraintError: it could hang on it."""
    if isinstance(spec, Choice):
        if sum(map(len, spec.options)) > MAX_PATTERN:
            raise UnsupportedConstraintError(
                f"outlines takes {MAX_PATTERN} characters of options at most; use auto", field="grammar"
            )
        return "|".join(map(literal_pattern, spec.options))

    full = full_pattern(spec.pattern)
    if len(spec.pattern) > MAX_PATTERN:
        raise refuse(spec.pattern, f"outlines takes {MAX_PATTERN} characters at most; use llguidance")
    if full.classes - SMALL_CLASSES or full.has_flags:
        named = ", ".join(sorted(full.classes - SMALL_CLASSES)) or "a flag"
        raise refuse(
            spec.pattern,
            f"with {named} it can take outlines all memory; write the characters out as in [0-9]",
        )
    if full.is_nested or full.repeats > MAX_REPEATS:
        raise refuse(
            spec.pattern,
            f"outlines can hang on a repeat inside of a repeat, or more than {MAX_REPEATS} copies; use "
            "llguidance",
        )
    return full.text


class OutlinesBackend:
    """Compiles with outlines-core what the router gives it. Thread-safe."""

    def __init__(self, spellings: Spellings) -> None:
        self._spellings = spellings

    def load(self) -> None:
        """Imports outlines-core, and reads the vocabulary into it. Raises InvalidRequestError: not
        installed."""
        _ = self._vocabulary

    def compile_regex(self, spec: Regex) -> "CompiledOutlines":
        return self._compile(outlines_pattern(spec))

    def compile_choice(self, spec: Choice) -> "CompiledOutlines":
        return self._compile(outlines_pattern(spec))

    def _compile(self, pattern: str) -> "CompiledOutlines":
        vocabulary = self._vocabulary
        from outlines_core import Index

        try:
            return CompiledOutlines(Index(pattern, vocabulary), self._spellings)
        except (ValueError, RuntimeError) as error:
            raise refuse(pattern, f"outlines refuses it ({str(error)[:200]})") from None

    @cached_property
    def _vocabulary(self) -> "Vocabulary":
        try:
            from outlines_core import Vocabulary
        except ImportError as error:
            raise InvalidRequestError(
                "backend outlines is not installed: pip install outlines-core==0.2.14", field="grammar"
            ) from error
        ids: dict[bytes, list[int]] = {}
        for token_id, text in enumerate(self._spellings.plain):
            if text:
                ids.setdefault(text, []).append(token_id)
        return Vocabulary(self._spellings.stop_token_ids[0], ids)


class CompiledOutlines:
    """An automaton over tokens, and the masks of its states that were met so far.

    What is kept for a state is a function of the state, so sharing it between matchers and threads is harmless.
    """

    def __init__(self, index: "Index", spellings: Spellings) -> None:
        self._index = index
        self._spellings = spellings
        self._allowed: dict[int, AllowedTokens] = {}

    def matcher(self) -> GuardedMatcher:
        return GuardedMatcher(OutlinesState(self, (int(self._index.get_initial_state()),)), self._spellings)

    def after(self, state: int, token_id: int) -> int | None:
        following = self._index.get_next_state(state, token_id)
        return None if following is None else int(following)

    def is_final(self, state: int) -> bool:
        return bool(self._index.is_final_state(state))

    def spelling(self, token_id: int) -> bytes:
        return self._spellings.plain[token_id]

    def allowed(self, state: int) -> AllowedTokens:
        known = self._allowed.get(state)
        if known is None:
            ids = self._index.get_allowed_tokens(state) or ()
            known = self._allowed[state] = AllowedTokens.of(
                {int(token_id) for token_id in ids} - set(self._spellings.stop_token_ids)
            )
        return known


class OutlinesState:
    """An EngineState: the states of the automaton that were passed, the present one last."""

    def __init__(self, compiled: CompiledOutlines, path: tuple[int, ...]) -> None:
        self._compiled = compiled
        self._path = list(path)

    def consume(self, token_id: int) -> bool:
        following = self._compiled.after(self._path[-1], token_id)
        if following is None:
            return False
        self._path.append(following)
        return True

    def can_stop(self) -> bool:
        return self._compiled.is_final(self._path[-1])

    def fill(self, row: npt.NDArray[np.int32]) -> None:
        self._compiled.allowed(self._path[-1]).fill(row)

    def undo(self, num_tokens: int) -> None:
        del self._path[len(self._path) - num_tokens :]

    def forced_bytes(self) -> bytes:
        """Of one token at most: the automaton knows of tokens, not of bytes."""
        allowed = self._compiled.allowed(self._path[-1]).token_ids
        if len(allowed) != 1 or self.can_stop():
            return b""
        return self._compiled.spelling(allowed[0])

    def copy(self) -> "OutlinesState":
        return OutlinesState(self._compiled, tuple(self._path))
