"""Tokens sorted by what they spell, against plain search."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.grammar.token_table import AllowedTokens, TokenTable
from tests.runtime.grammar.fakes import ListVocabulary, allowed_ids

spellings = st.lists(st.binary(max_size=4).map(lambda b: bytes(x % 3 for x in b)), max_size=12)


def test_special_empty_and_stop_tokens_spell_nothing() -> None:
    table = TokenTable(ListVocabulary([b"a", None, b"", b"ab", b"a", b"stop"], [5, 77]))
    assert table.bytes_of == {0: b"a", 3: b"ab", 4: b"a"}
    assert (table.strings, table.ids) == ([b"a", b"ab"], [(0, 4), (3,)])
    assert (table.stop_token_ids, table.max_length) == ((5,), 2)
    assert table.single_bytes == {ord("a")}


def test_no_tokens() -> None:
    table = TokenTable(ListVocabulary([None], []))
    assert table.max_length == 0
    assert not table.is_extendable(b"")
    assert list(table.starting_with(b"")) == []
    assert table.ids_spelling(b"a") == ()


@given(spellings, st.binary(max_size=3).map(lambda b: bytes(x % 3 for x in b)))
def test_searches_agree_with_plain_ones(tokens: list[bytes], string: bytes) -> None:
    table = TokenTable(ListVocabulary([*tokens, None], [len(tokens)]))
    ids = [i for place in table.starting_with(string) for i in table.ids[place]]
    assert sorted(ids) == [i for i, token in enumerate(tokens) if token and token.startswith(string)]
    assert table.ids_spelling(string) == tuple(i for i, t in enumerate(tokens) if t and t == string)
    assert table.is_extendable(string) == any(t.startswith(string) and t != string for t in tokens)


@given(st.sets(st.integers(0, 99)))
def test_a_set_as_a_mask(token_ids: set[int]) -> None:
    row = np.full(4, -1, dtype=np.int32)
    allowed = AllowedTokens.of(token_ids)
    allowed.fill(row)
    assert allowed_ids(row.tolist(), 128) == sorted(token_ids) == list(allowed.token_ids)
