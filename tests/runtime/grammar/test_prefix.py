"""The prefix backend against brute force over small vocabularies."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.grammar.backend import ForcedText, GrammarMatcher
from ramet.runtime.grammar.choice import ChoiceBackend
from ramet.runtime.grammar.prefix import PrefixBackend
from ramet.runtime.protocol import Choice, Prefix, Regex, UnsupportedConstraintError
from tests.runtime.grammar.fakes import ListVocabulary, allowed_ids
from tests.runtime.grammar.service.troubled import TroubledBackend

SINGLES = [bytes([value]) for value in b":/abtp"]
COLON, SLASH, A, B, T, P = range(6)
STOP, UNUSED, SPECIAL, COLON_SLASHES, SLASHES, COLON_A, AB = range(6, 13)
VOCABULARY = ListVocabulary([*SINGLES, b"stop", b"", None, b"://", b"//", b":a", b"ab"], [STOP])


def backend(vocabulary: ListVocabulary = VOCABULARY) -> PrefixBackend:
    choices = ChoiceBackend(vocabulary)
    return PrefixBackend(choices, lambda: choices.tokens)


def matcher(text: str, *options: str, vocabulary: ListVocabulary = VOCABULARY) -> GrammarMatcher:
    inner = Choice(options) if options else None
    return backend(vocabulary).compile(Prefix(text, inner)).matcher()


def mask(of: GrammarMatcher, vocabulary: ListVocabulary = VOCABULARY) -> list[int]:
    row: npt.NDArray[np.int32] = np.full(-(-vocabulary.vocab_size // 32), 5, dtype=np.int32)
    of.fill_bitmask(row)
    return allowed_ids(row.tolist(), 32 * len(row))


class TestMasks:
    def test_tokens_that_spell_the_text_and_more(self) -> None:
        assert mask(matcher(":")) == [COLON, COLON_SLASHES, COLON_A]

    def test_then_everything(self) -> None:
        state = matcher(":")
        assert not state.is_unconstrained()
        assert state.accept(COLON_SLASHES)
        assert state.is_unconstrained()
        assert mask(state) == list(range(VOCABULARY.vocab_size))
        for token_id in (SPECIAL, UNUSED, STOP, A):
            assert state.accept(token_id)
        assert not state.is_terminated()
        assert not state.accept(VOCABULARY.vocab_size)
        assert not state.accept(-1)

    def test_the_text_may_be_spelled_in_parts(self) -> None:
        state = matcher(":/")
        assert mask(state) == [COLON, COLON_SLASHES]
        assert not state.accept(COLON_A)
        assert state.accept(COLON)
        assert mask(state) == [SLASH, SLASHES]
        assert not state.is_unconstrained()

    def test_no_stop_before_the_text_stands(self) -> None:
        state = matcher("st", vocabulary=ListVocabulary([b"s", b"t", b"st"], [2]))
        assert not state.accept(2)
        assert state.accept(0)
        assert not state.accept(2)
        assert state.accept(1)
        assert state.accept(2)

    def test_what_goes_beyond_the_text_is_the_inner_grammars(self) -> None:
        state = matcher(":", "//a", "ab")
        assert mask(state) == [COLON, COLON_SLASHES, COLON_A]
        assert state.accept(COLON_SLASHES)
        assert mask(state) == [A]
        assert state.accept(A)
        assert mask(state) == [STOP]
        assert not state.is_terminated()
        assert state.accept(STOP)
        assert state.is_terminated()
        assert not state.is_unconstrained()

    def test_what_the_inner_grammar_refuses_is_left_out(self) -> None:
        state = matcher(":", "b")
        assert mask(state) == [COLON]
        for refused in (COLON_A, COLON_SLASHES, STOP, SPECIAL):
            assert not state.accept(refused)
        assert state.accept(COLON)
        assert mask(state) == [B]

    def test_every_bit_beyond_the_vocabulary_is_clear(self) -> None:
        vocabulary = ListVocabulary([b"a"] * 64, [])
        state = matcher("a", vocabulary=vocabulary)
        assert state.accept(0)
        assert mask(state, vocabulary) == list(range(64))


class TestMatcher:
    @pytest.mark.parametrize("options", [(), ("//a", "ab")])
    def test_rollback(self, options: tuple[str, ...]) -> None:
        state = matcher(":", *options)
        before = mask(state)
        assert state.accept(COLON_SLASHES)
        behind = mask(state)
        assert state.accept(A)
        state.rollback(1)
        assert mask(state) == behind
        assert state.accept(A)
        state.rollback(2)
        assert mask(state) == before
        state.rollback(0)
        assert state.accept(COLON)

    @pytest.mark.parametrize("count", [-1, 2])
    def test_rollback_of_more_than_was_accepted(self, count: int) -> None:
        state = matcher(":")
        state.accept(COLON)
        with pytest.raises(ValueError, match=f"cannot roll back {count} tokens: 1 were accepted"):
            state.rollback(count)

    def test_a_fork_is_independent(self) -> None:
        state = matcher(":", "//a", "ab")
        fork = state.fork()
        assert state.accept(COLON_SLASHES)
        assert mask(fork) == [COLON, COLON_SLASHES, COLON_A]
        assert fork.accept(COLON)
        assert mask(fork) == [SLASH, A, SLASHES, AB]
        assert mask(state) == [A]

    def test_forced_tokens(self) -> None:
        assert matcher("b", "t").forced_tokens() == [B, T, STOP]
        assert matcher("bt").forced_tokens() == [B, T]
        assert matcher(":").forced_tokens() == []


class TestRefused:
    def test_a_text_that_no_token_spells(self) -> None:
        with pytest.raises(UnsupportedConstraintError, match="prefix 'axb' cannot be spelled") as caught:
            matcher("axb")
        assert caught.value.field == "grammar"

    def test_a_lone_surrogate(self) -> None:
        with pytest.raises(UnsupportedConstraintError, match="lone surrogate"):
            matcher("a\ud800")

    def test_an_inner_grammar_of_a_kind_that_is_not_there(self) -> None:
        with pytest.raises(UnsupportedConstraintError, match="Regex"):
            backend().compile(Prefix("a", Regex("b")))

    def test_other_kinds_go_to_the_inner_backend(self) -> None:
        assert backend().kinds == {"choice", "prefix"}
        assert mask(backend().compile(Choice(("b",))).matcher()) == [B]
        with pytest.raises(UnsupportedConstraintError, match="Regex"):
            backend().compile(Regex("b"))


def test_tokens_that_lead_nowhere_are_not_allowed() -> None:
    # "abc" is a + bc; behind ab nothing could follow.
    vocabulary = ListVocabulary([b"a", b"ab", b"bc", None], [3])
    state = matcher("abc", vocabulary=vocabulary)
    assert mask(state, vocabulary) == [0]
    assert not state.accept(1)


words = st.text(alphabet="abc", min_size=1, max_size=4)


def spellable(text: bytes, spellings: list[bytes], *, may_pass: bool) -> bool:
    """By tokens; with ``may_pass`` the last one may go on."""
    return text == b"" or any(
        (text.startswith(s) and spellable(text[len(s) :], spellings, may_pass=may_pass))
        or (may_pass and s.startswith(text))
        for s in spellings
    )


@given(
    text=words,
    pieces=st.lists(words, max_size=12),
    singles=st.sets(st.sampled_from("abc")),
    choices=st.lists(st.integers(0, 20), max_size=6),
)
def test_free_continuations_agree_with_brute_force(
    text: str, pieces: list[str], singles: set[str], choices: list[int]
) -> None:
    spellings = [piece.encode() for piece in [*pieces, *sorted(singles)]]
    vocabulary = ListVocabulary([*spellings, None, None], [len(spellings)])
    required = text.encode()
    if not spellable(required, spellings, may_pass=True):
        with pytest.raises(UnsupportedConstraintError):
            matcher(text, vocabulary=vocabulary)
        return
    state, written = matcher(text, vocabulary=vocabulary), b""
    for choice in choices:
        expected = [
            token_id
            for token_id, spelled in enumerate(spellings)
            if (written + spelled).startswith(required)
            or (
                required.startswith(written + spelled)
                and spellable(required[len(written + spelled) :], spellings, may_pass=True)
            )
        ]
        if written.startswith(required):
            expected = list(range(vocabulary.vocab_size))
        assert mask(state, vocabulary) == expected
        assert state.is_unconstrained() == written.startswith(required)
        for token_id in range(vocabulary.vocab_size):
            assert state.fork().accept(token_id) == (token_id in expected)
        token_id = expected[choice % len(expected)]
        assert state.accept(token_id)
        written += spellings[token_id] if token_id < len(spellings) else b""


@given(
    text=words,
    options=st.lists(words, min_size=1, max_size=4),
    pieces=st.lists(words, max_size=12),
    choices=st.lists(st.integers(0, 20), max_size=8),
)
def test_a_choice_behind_the_text_agrees_with_brute_force(
    text: str, options: list[str], pieces: list[str], choices: list[int]
) -> None:
    spellings = [piece.encode() for piece in [*pieces, "a", "b", "c"]]
    stop = len(spellings)
    vocabulary = ListVocabulary([*spellings, None], [stop])
    targets = [(text + option).encode() for option in options]
    state, written = matcher(text, *options, vocabulary=vocabulary), b""
    for choice in choices:
        expected = [
            token_id
            for token_id, spelled in enumerate(spellings)
            if any(target.startswith(written + spelled) for target in targets)
        ]
        expected += [stop] if written in targets else []
        assert mask(state, vocabulary) == expected
        for token_id in range(vocabulary.vocab_size):
            fork = state.fork()
            assert fork.accept(token_id) == (token_id in expected)
            if token_id in expected:
                fork.rollback(1)
                assert mask(fork, vocabulary) == expected
        token_id = expected[choice % len(expected)]
        assert state.accept(token_id)
        if token_id == stop:
            assert state.is_terminated()
            return
        written += spellings[token_id]


def test_forced_bytes_are_the_rest_of_the_text_and_what_its_inner_grammar_forces() -> None:
    state = backend().compile(Prefix(":/", Choice(("ab", "at")))).matcher()
    assert isinstance(state, ForcedText)
    assert state.forced_bytes() == b":/a"
    assert state.accept(COLON)
    assert state.forced_bytes() == b"/a"
    assert state.accept(SLASH)
    assert state.accept(AB)
    assert state.forced_bytes() == b""
    free = matcher(":/")
    assert isinstance(free, ForcedText)
    assert free.forced_bytes() == b":/"
    assert free.accept(COLON_SLASHES)
    assert free.forced_bytes() == b""


def test_it_is_as_risky_as_its_inner_backend() -> None:
    risky = TroubledBackend()
    over_risky = PrefixBackend(risky, lambda: ChoiceBackend(VOCABULARY).tokens)
    assert over_risky.probe_builder == risky.probe_builder
    assert over_risky.needs_probe(Regex("!a"))
    assert not over_risky.needs_probe(Regex("a"))
    assert not backend().needs_probe(Prefix(":"))
    assert backend().probe_builder == ""
