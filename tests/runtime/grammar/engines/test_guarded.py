"""What holds for every engine: stop tokens, rollback, forks, forced tokens, dead ends."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.grammar.engines import EngineRouter
from ramet.runtime.grammar.engines.guarded import EngineState, GuardedMatcher
from ramet.runtime.grammar.engines.spellings import Spellings
from ramet.runtime.grammar.token_table import AllowedTokens
from ramet.runtime.protocol import Choice, Regex, RequestFailedError
from tests.runtime.grammar.engines.walking import STOP, TINY, allowed, spelled
from tests.runtime.grammar.fakes import ListVocabulary

SPELLINGS = Spellings(TINY)


class OneText:
    """An EngineState that allows one text in any tokenisation, and says that stop tokens are allowed always."""

    def __init__(self, text: bytes, spellings: Spellings = SPELLINGS, path: tuple[int, ...] = (0,)) -> None:
        self._text = text
        self._spellings = spellings
        self._path = list(path)

    def consume(self, token_id: int) -> bool:
        spelled_bytes = self._spellings.plain[token_id]
        if not spelled_bytes or not self._text.startswith(spelled_bytes, self._path[-1]):
            return False
        self._path.append(self._path[-1] + len(spelled_bytes))
        return True

    def can_stop(self) -> bool:
        return self._path[-1] == len(self._text)

    def fill(self, row: npt.NDArray[np.int32]) -> None:
        rest = self._text[self._path[-1] :]
        ids = [i for i, text in enumerate(self._spellings.plain) if text and rest.startswith(text)]
        AllowedTokens.of([*ids, *self._spellings.stop_token_ids]).fill(row)

    def undo(self, num_tokens: int) -> None:
        del self._path[len(self._path) - num_tokens :]

    def forced_bytes(self) -> bytes:
        return self._text[self._path[-1] :]

    def copy(self) -> "OneText":
        return OneText(self._text, self._spellings, tuple(self._path))


def matcher(text: bytes, spellings: Spellings = SPELLINGS) -> GuardedMatcher:
    state: EngineState = OneText(text, spellings)
    return GuardedMatcher(state, spellings)


def test_a_stop_token_is_allowed_at_the_end_alone() -> None:
    made = matcher(b"ab")
    assert STOP not in allowed(made, TINY)
    assert not made.accept(STOP)
    assert made.accept(spelled("ab", TINY)[0])
    assert allowed(made, TINY) == {STOP}
    assert made.accept(STOP)
    assert made.is_terminated()
    assert not made.accept(STOP)
    assert allowed(made, TINY) == set()
    assert made.forced_tokens() == []
    assert made.forced_bytes() == b""


@pytest.mark.parametrize("token_id", [-1, TINY.vocab_size, 10**9])
def test_ids_out_of_range_are_not_accepted(token_id: int) -> None:
    assert not matcher(b"ab").accept(token_id)


def test_rollback_counts_the_stop_token() -> None:
    made = matcher(b"ab")
    ids = [*spelled("a", TINY), *spelled("b", TINY), STOP]
    assert all(made.accept(token_id) for token_id in ids)
    made.rollback(1)
    assert not made.is_terminated()
    assert allowed(made, TINY) == {STOP}
    assert made.accept(STOP)
    made.rollback(3)
    assert made.forced_bytes() == b"ab"
    made.rollback(0)
    with pytest.raises(ValueError, match="cannot roll back 1 tokens: 0 were accepted"):
        made.rollback(1)
    with pytest.raises(ValueError, match="cannot roll back -1"):
        made.rollback(-1)


def test_a_fork_goes_its_own_way() -> None:
    made = matcher(b"abc")
    assert made.accept(spelled("a", TINY)[0])
    fork = made.fork()
    assert fork.accept(spelled("b", TINY)[0])
    assert (made.forced_bytes(), fork.forced_bytes()) == (b"bc", b"c")
    fork.rollback(2)
    assert fork.forced_bytes() == b"abc"
    assert not made.is_unconstrained()


def test_forced_tokens_are_those_without_another() -> None:
    # "a", "ab" and "abc" are tokens: the first place is open. "(x)" can be spelled in one way only.
    assert matcher(b"abc").forced_tokens() == []
    made = matcher(b"(x)ab")
    assert made.forced_tokens() == spelled("(x)", TINY)
    assert made.forced_bytes() == b"(x)ab", "looking ahead changes nothing"
    assert matcher(b"(x)").forced_tokens() == [*spelled("(x)", TINY), STOP]
    assert matcher(b"(" * 200).forced_tokens() == spelled("(" * 64, TINY)


def test_with_two_stop_tokens_none_is_forced() -> None:
    two = Spellings(ListVocabulary([b"(", None, None], [1, 2]))
    made = GuardedMatcher(OneText(b"(", two), two)
    assert made.forced_tokens() == [0]


def test_a_dead_end_is_an_error_with_a_name() -> None:
    made = matcher(b"a\x80")
    assert made.accept(spelled("a", TINY)[0])
    with pytest.raises(RequestFailedError, match="cannot go on after 1 tokens"):
        allowed(made, TINY)


def test_a_row_may_be_wider_or_lie_anywhere() -> None:
    plain = np.zeros(SPELLINGS.num_words, dtype=np.int32)
    matcher(b"(").fill_bitmask(plain)
    wide = np.full(SPELLINGS.num_words + 2, -1, dtype=np.int32)
    matcher(b"(").fill_bitmask(wide)
    assert wide.tolist() == [*plain.tolist(), 0, 0]
    strided = np.full((SPELLINGS.num_words, 2), -1, dtype=np.int32)
    matcher(b"(").fill_bitmask(strided[:, 0])
    assert strided[:, 0].tolist() == plain.tolist()
    assert (strided[:, 1] == -1).all()


@pytest.mark.parametrize("engine", ["llguidance", "xgrammar", "outlines"])
@given(data=st.data())
def test_rolling_back_leads_to_the_same_masks(
    tiny_router: EngineRouter, engine: str, data: st.DataObject
) -> None:
    specs: list[Regex | Choice] = [
        Regex("[ab]{2,4}(cx|dx)?\\.", engine),
        Choice(("abc", "ab", "(12)x"), engine),
    ]
    spec = data.draw(st.sampled_from(specs))
    made = tiny_router.compile(spec).matcher()
    seen = [allowed(made, TINY)]
    for _ in range(data.draw(st.integers(0, 5))):
        if made.is_terminated():
            break
        assert made.accept(data.draw(st.sampled_from(sorted(seen[-1]))))
        seen.append(allowed(made, TINY))
    fork = made.fork()
    while len(seen) > 1:
        back = data.draw(st.integers(1, len(seen) - 1))
        made.rollback(back)
        del seen[len(seen) - back :]
        assert allowed(made, TINY) == seen[-1]
    assert fork.is_terminated() or allowed(fork, TINY)


class Counted(OneText):
    """One that knows nothing of what is forced, and counts its masks."""

    num_filled = 0

    def fill(self, row: npt.NDArray[np.int32]) -> None:
        self.num_filled += 1
        super().fill(row)

    def forced_bytes(self) -> None:  # type: ignore[override]
        return None


def test_a_mask_that_was_needed_to_see_what_is_forced_is_filled_once() -> None:
    state = Counted(b"(xab)")
    made = GuardedMatcher(state, SPELLINGS)
    assert made.forced_tokens() == spelled("(x", TINY), "of ab there are three spellings"
    assert state.num_filled == 3
    assert made.forced_bytes() == b"(xab)"
    assert state.num_filled == 3 + 4
    first = allowed(made, TINY)
    assert state.num_filled == 7, "the first is known"
    for count, token_id in enumerate(spelled("(xab)", TINY)):
        assert token_id in (first if not count else allowed(made, TINY))
        assert made.accept(token_id)
    assert allowed(made, TINY) == {STOP}
    made.rollback(3)
    assert allowed(made, TINY) == set(spelled("x", TINY))
    assert made.forced_tokens() == spelled("x", TINY)
    assert made.accept(spelled("x", TINY)[0])
    assert allowed(made, TINY) == set(spelled("a", TINY) + spelled("ab", TINY))
