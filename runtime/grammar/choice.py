"""ChoiceBackend: the output is exactly one of a few strings, in any tokenisation.

Options and vocabulary are sorted byte strings. A sorted list is a trie: the strings that share a prefix are a
range of it, so a state of the grammar is (first option, end, bytes matched), and the tokens allowed in it are
found by walking both lists together, byte by byte, as long as both have strings that go on alike.
"""

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ramet.runtime.grammar.backend import Vocabulary
from ramet.runtime.grammar.token_table import AllowedTokens, TokenTable
from ramet.runtime.protocol import Choice, GrammarSpec, UnsupportedConstraintError


@dataclass(frozen=True, slots=True)
class _State:
    """Options first..end-1 begin with the bytes written so far, of which there are ``depth``."""

    first: int
    end: int
    depth: int


class ChoiceBackend:
    """Compiles Choice; every other kind of spec is refused by name."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    @cached_property
    def tokens(self) -> TokenTable:
        """Built on first use: an engine that is never asked for a choice starts without it."""
        return TokenTable(self._vocabulary)

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset({"choice"})

    def compile(self, spec: GrammarSpec) -> "CompiledChoice":
        """Raises UnsupportedConstraintError: not a Choice, or an option that no sequence of tokens spells."""
        if not isinstance(spec, Choice):
            kind = type(spec).__name__
            raise UnsupportedConstraintError(
                f"a grammar of kind {kind} cannot be enforced by the choice backend; use Choice",
                field="grammar",
            )
        if not self.tokens.stop_token_ids:
            raise UnsupportedConstraintError(
                "a choice cannot be enforced: the tokenizer has no stop token to end it with", field="grammar"
            )
        return CompiledChoice(sorted({_encoded(option) for option in spec.options}), self.tokens)


class CompiledChoice:
    """The options, and what is allowed in each state that was met so far.

    What is kept for a state is a function of the state, so sharing it between matchers and threads is harmless.
    """

    def __init__(self, options: list[bytes], tokens: TokenTable) -> None:
        self._options = options
        self._tokens = tokens
        self._allowed: dict[_State, AllowedTokens] = {}
        self._dead: frozenset[_State] = frozenset()
        self.start = _State(0, len(options), 0)
        if not set().union(*options) <= tokens.single_bytes:
            self._dead = self._dead_states()

    def matcher(self) -> "ChoiceMatcher":
        return ChoiceMatcher(self, [self.start])

    def is_complete(self, state: _State) -> bool:
        """One of the options ends here."""
        return len(self._options[state.first]) == state.depth

    def is_stop(self, token_id: int) -> bool:
        return token_id in self._tokens.stop_token_ids

    def after(self, state: _State, token_id: int) -> _State | None:
        """The state behind a token that spells something; None where no option goes on like that."""
        spelled = self._tokens.bytes_of.get(token_id)
        if spelled is None:
            return None
        after = self._state_at(state, self._options[state.first][: state.depth] + spelled)
        return None if after in self._dead else after

    def allowed(self, state: _State) -> AllowedTokens:
        """What may follow, stop tokens included."""
        known = self._allowed.get(state)
        if known is None:
            ids = self._continuations(state)
            if self._dead:
                ids = [token_id for token_id in ids if self.after(state, token_id) is not None]
            if self.is_complete(state):
                ids += self._tokens.stop_token_ids
            known = AllowedTokens.of(ids)
            self._allowed[state] = known
        return known

    def common(self, state: _State) -> bytes:
        """What all options that are left go on with."""
        # Sorted, so that what the first and the last share, all share.
        first, last = self._options[state.first], self._options[state.end - 1]
        pairs = enumerate(zip(first[state.depth :], last[state.depth :], strict=False), state.depth)
        end = next((at for at, (one, other) in pairs if one != other), min(len(first), len(last)))
        return first[state.depth : end]

    def _state_at(self, state: _State, prefix: bytes) -> _State | None:
        first = bisect_left(self._options, prefix, state.first, state.end)
        if first == state.end or not self._options[first].startswith(prefix):
            return None
        depth = len(prefix)
        end = bisect_left(self._options, True, first, state.end, key=lambda option: option[:depth] != prefix)
        return _State(first, end, depth)

    def _continuations(self, state: _State) -> list[int]:
        """Ids of the tokens whose bytes lie on a path of the options from ``state`` on."""
        options, strings = self._options, self._tokens.strings
        found: list[int] = []
        # Ranges of options and of tokens that go on alike for ``length`` bytes behind the state.
        pending = [(state.first, state.end, 0, len(strings), 0)]
        while pending:
            option, option_end, token, token_end, length = pending.pop()
            if length and len(strings[token]) == length:
                found += self._tokens.ids[token]
                token += 1
            at = state.depth + length
            if len(options[option]) == at:
                option += 1
            while option < option_end and token < token_end:
                byte = options[option][at]
                next_option = bisect_left(options, byte + 1, option, option_end, key=lambda o: o[at])
                token = bisect_left(strings, byte, token, token_end, key=lambda s: s[length])
                next_token = bisect_left(strings, byte + 1, token, token_end, key=lambda s: s[length])
                if token < next_token:
                    pending.append((option, next_option, token, next_token, length + 1))
                option, token = next_option, next_token
        return found

    def _dead_states(self) -> frozenset[_State]:
        """States from which tokens reach no option's end. Needed only where some byte has no token of its own.

        Raises UnsupportedConstraintError if an option cannot be spelled.
        """
        successors: dict[_State, list[_State]] = {}
        pending = [self.start]
        while pending:
            state = pending.pop()
            if state not in successors:
                reached = {self.after(state, token_id) for token_id in self._continuations(state)}
                successors[state] = [after for after in reached if after is not None]
                pending += successors[state]
        complete = {state.first for state in successors if self.is_complete(state)}
        for index, option in enumerate(self._options):
            if index not in complete:
                raise UnsupportedConstraintError(
                    f"the choice's option {option.decode()[:80]!r} cannot be spelled with this tokenizer; "
                    "remove it",
                    field="grammar",
                )
        dead: set[_State] = set()
        for state in sorted(successors, key=lambda state: -state.depth):
            if not self.is_complete(state) and all(after in dead for after in successors[state]):
                dead.add(state)
        return frozenset(dead)


class ChoiceMatcher:
    """Where one request is among the options.

    Invariant: the path holds the start and one state for each accepted token; None stands for the end of the
    output.
    """

    def __init__(self, compiled: CompiledChoice, path: "list[_State | None]") -> None:
        self._compiled = compiled
        self._path = path

    def accept(self, token_id: int) -> bool:
        state = self._path[-1]
        if state is None:
            return False
        if self._compiled.is_stop(token_id):
            if not self._compiled.is_complete(state):
                return False
            self._path.append(None)
            return True
        after = self._compiled.after(state, token_id)
        if after is None:
            return False
        self._path.append(after)
        return True

    def fill_bitmask(self, row: npt.NDArray[np.int32]) -> None:
        state = self._path[-1]
        if state is None:
            row.fill(0)
        else:
            self._compiled.allowed(state).fill(row)

    def rollback(self, num_tokens: int) -> None:
        if not 0 <= num_tokens < len(self._path):
            raise ValueError(f"cannot roll back {num_tokens} tokens: {len(self._path) - 1} were accepted")
        del self._path[len(self._path) - num_tokens :]

    def forced_tokens(self) -> list[int]:
        forced: list[int] = []
        state = self._path[-1]
        while state is not None:
            allowed = self._compiled.allowed(state).token_ids
            if len(allowed) != 1:
                break
            forced += allowed
            state = self._compiled.after(state, allowed[0])
        return forced

    def forced_bytes(self) -> bytes:
        """See ForcedText."""
        state = self._path[-1]
        return b"" if state is None else self._compiled.common(state)

    def is_terminated(self) -> bool:
        return self._path[-1] is None

    def is_unconstrained(self) -> bool:
        return False

    def fork(self) -> "ChoiceMatcher":
        return ChoiceMatcher(self._compiled, list(self._path))


def _encoded(option: str) -> bytes:
    try:
        return option.encode()
    except UnicodeEncodeError:
        raise UnsupportedConstraintError(
            f"the choice's option {option[:80]!r} has a lone surrogate, which no token can spell; remove it",
            field="grammar",
        ) from None
