"""The choice backend against brute force over small vocabularies."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.grammar.backend import GrammarMatcher
from ramet.runtime.grammar.choice import ChoiceBackend
from ramet.runtime.protocol import (
    Choice,
    Ebnf,
    GrammarSpec,
    JsonSchema,
    Regex,
    StructuralTag,
    UnsupportedConstraintError,
)
from tests.runtime.grammar.fakes import ListVocabulary, allowed_ids

BYTES = [bytes([value]) for value in range(256)]
STOP = 256
# Every byte, a stop token, an unused one, and some longer ones; "no" has two ids.
VOCABULARY = ListVocabulary([*BYTES, None, None, b"ye", b"yes", b"no", b"no", b"es", b"", b"yesterday"], [STOP])


def matcher(*options: str, vocabulary: ListVocabulary = VOCABULARY) -> GrammarMatcher:
    return ChoiceBackend(vocabulary).compile(Choice(options)).matcher()


def mask(of: GrammarMatcher, vocabulary: ListVocabulary = VOCABULARY) -> list[int]:
    row: npt.NDArray[np.int32] = np.full(-(-vocabulary.vocab_size // 32), -1, dtype=np.int32)
    of.fill_bitmask(row)
    return allowed_ids(row.tolist(), 32 * len(row))


class TestMasks:
    def test_any_tokenisation_of_an_option_is_allowed(self) -> None:
        state = matcher("yes", "no")
        assert mask(state) == [ord("n"), ord("y"), 258, 259, 260, 261]
        assert state.accept(258)
        assert mask(state) == [ord("s")]

    def test_the_end_is_allowed_where_an_option_is_complete(self) -> None:
        state = matcher("yes")
        assert not state.accept(STOP)
        assert state.accept(259)
        assert mask(state) == [STOP]
        assert not state.is_terminated()
        assert state.accept(STOP)
        assert state.is_terminated()
        assert mask(state) == []
        assert not state.accept(ord("y"))

    def test_an_option_that_begins_another_may_end_or_go_on(self) -> None:
        state = matcher("no", "not", "note")
        assert state.accept(260)
        assert mask(state) == [ord("t"), STOP]
        assert state.accept(ord("t"))
        assert mask(state) == [ord("e"), STOP]

    def test_options_need_not_be_ascii(self) -> None:
        state = matcher("é", "日本", "\0\n")
        for byte in "日本".encode():
            assert state.accept(byte)
        assert mask(state) == [STOP]

    def test_several_stop_tokens(self) -> None:
        vocabulary = ListVocabulary([b"a", None, None, b"b"], [2, 1, 99])
        state = matcher("a", vocabulary=vocabulary)
        assert state.accept(0)
        assert mask(state, vocabulary) == [1, 2]

    def test_a_stop_token_that_spells_something_is_a_stop(self) -> None:
        vocabulary = ListVocabulary([b"a", b"ab", b"b"], [1])
        state = matcher("ab", vocabulary=vocabulary)
        assert mask(state, vocabulary) == [0]
        assert not state.accept(1)

    def test_tokens_out_of_the_vocabulary_are_not_accepted(self) -> None:
        assert not matcher("yes").accept(10**6)
        assert not matcher("yes").accept(-1)

    def test_duplicate_options_are_one(self) -> None:
        state = matcher("yes", "yes")
        assert state.accept(259)
        assert mask(state) == [STOP]


class TestMatcher:
    def test_rollback(self) -> None:
        state = matcher("yes", "no")
        before = mask(state)
        for token_id in (258, ord("s"), STOP):
            assert state.accept(token_id)
        state.rollback(1)
        assert mask(state) == [STOP]
        state.rollback(2)
        assert mask(state) == before
        state.rollback(0)
        assert mask(state) == before

    @pytest.mark.parametrize("count", [-1, 2])
    def test_rollback_of_more_than_was_accepted(self, count: int) -> None:
        state = matcher("yes")
        state.accept(ord("y"))
        with pytest.raises(ValueError, match=f"cannot roll back {count} tokens: 1 were accepted"):
            state.rollback(count)

    def test_a_refused_token_changes_nothing(self) -> None:
        state = matcher("yes")
        assert not state.accept(ord("x"))
        assert state.accept(259)

    def test_a_fork_is_independent(self) -> None:
        state = matcher("yes", "no")
        fork = state.fork()
        assert state.accept(259)
        assert fork.accept(260)
        assert not fork.is_terminated()
        assert mask(state) == mask(fork) == [STOP]

    def test_forced_tokens_go_as_far_as_one_only_is_possible(self) -> None:
        state = matcher("yes", "yelp")
        assert state.accept(258)
        assert state.forced_tokens() == []
        assert state.accept(ord("l"))
        assert state.forced_tokens() == [ord("p"), STOP]
        for token_id in (ord("p"), STOP):
            assert state.accept(token_id)
        assert state.forced_tokens() == []


class TestRefused:
    @pytest.mark.parametrize("spec", [JsonSchema("{}"), Regex("a"), Ebnf("a"), StructuralTag("{}")])
    def test_other_kinds_by_name(self, spec: GrammarSpec) -> None:
        with pytest.raises(UnsupportedConstraintError, match=type(spec).__name__) as caught:
            ChoiceBackend(VOCABULARY).compile(spec)
        assert caught.value.field == "grammar"

    def test_an_option_that_no_token_spells(self) -> None:
        with pytest.raises(UnsupportedConstraintError, match="option 'abc' cannot be spelled"):
            matcher("ab", "abc", vocabulary=ListVocabulary([b"a", b"ab", None], [2]))

    def test_an_option_with_a_lone_surrogate(self) -> None:
        with pytest.raises(UnsupportedConstraintError, match="lone surrogate"):
            matcher("a\ud800")

    def test_a_tokenizer_without_a_stop_token(self) -> None:
        with pytest.raises(UnsupportedConstraintError, match="no stop token"):
            matcher("a", vocabulary=ListVocabulary([b"a"], []))

    def test_tokens_that_lead_nowhere_are_not_allowed(self) -> None:
        # "abc" is a + bc; behind ab nothing could follow.
        vocabulary = ListVocabulary([b"a", b"ab", b"bc", None], [3])
        state = matcher("abc", vocabulary=vocabulary)
        assert mask(state, vocabulary) == [0]
        assert not state.accept(1)
        assert state.forced_tokens() == [0, 2, 3]


def spellable(text: bytes, spellings: list[bytes]) -> bool:
    return text == b"" or any(
        text.startswith(spelling) and spellable(text[len(spelling) :], spellings) for spelling in spellings
    )


words = st.text(alphabet="abc", min_size=1, max_size=5)


@given(
    options=st.lists(words, min_size=1, max_size=6),
    pieces=st.lists(words, max_size=12),
    singles=st.sets(st.sampled_from("abc")),
    choices=st.lists(st.integers(0, 10), max_size=8),
)
def test_masks_and_accept_agree_with_brute_force(
    options: list[str], pieces: list[str], singles: set[str], choices: list[int]
) -> None:
    spellings = [piece.encode() for piece in [*pieces, *sorted(singles)]]
    vocabulary = ListVocabulary([*spellings, None, None], [len(spellings)])
    targets = [option.encode() for option in options]
    if not all(spellable(target, spellings) for target in targets):
        with pytest.raises(UnsupportedConstraintError):
            matcher(*options, vocabulary=vocabulary)
        return
    state = matcher(*options, vocabulary=vocabulary)
    written, stop = b"", len(spellings)

    def possible(token_id: int) -> bool:
        text = written + spellings[token_id]
        return any(target.startswith(text) and spellable(target[len(text) :], spellings) for target in targets)

    for choice in choices:
        expected = [token_id for token_id in range(stop) if possible(token_id)]
        expected += [stop] if written in targets else []
        assert mask(state, vocabulary) == expected
        for token_id in range(vocabulary.vocab_size):
            assert state.fork().accept(token_id) == (token_id in expected)
        assert state.forced_tokens()[:1] == (expected if len(expected) == 1 else [])
        token_id = expected[choice % len(expected)]
        assert state.accept(token_id)
        if token_id == stop:
            assert state.is_terminated()
            return
        written += spellings[token_id]


@given(st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=5), st.text("ab", max_size=6))
def test_forced_bytes_are_what_all_options_that_are_left_go_on_with(options: list[str], prefix: str) -> None:
    state = ChoiceBackend(VOCABULARY).compile(Choice(tuple(options))).matcher()
    if not all(state.accept(ord(letter)) for letter in prefix):
        return
    left = [option[len(prefix) :] for option in options if option.startswith(prefix)]
    common = [at for at in range(min(map(len, left)) + 1) if len({rest[:at] for rest in left}) == 1]
    assert state.forced_bytes() == left[0][: max(common)].encode()
    if "" in left:
        assert state.accept(STOP)
        assert state.forced_bytes() == b""
