"""A vocabulary as data says what the original says."""

import msgspec

from ramet.runtime.grammar import ChoiceBackend
from ramet.runtime.grammar.service import PlainVocabulary
from ramet.runtime.protocol import Choice
from ramet.runtime.tokenizer import ByteTokenizer
from tests.runtime.grammar.fakes import ListVocabulary


def test_it_travels_and_serves_a_backend() -> None:
    spellings = [b"a", b"\xff\x00", None, b"b"]
    plain = PlainVocabulary.of(ListVocabulary(spellings, [2]))
    copy = msgspec.msgpack.decode(msgspec.msgpack.encode(plain), type=PlainVocabulary)
    assert copy == plain
    assert (copy.vocab_size, copy.stop_token_ids) == (4, (2,))
    assert [copy.token_bytes(token_id) for token_id in range(4)] == spellings
    matcher = ChoiceBackend(copy).compile(Choice(("ab",))).matcher()
    assert matcher.forced_tokens() == [0, 3, 2]


def test_it_names_control_tokens_where_the_original_does() -> None:
    assert PlainVocabulary.of(ByteTokenizer()).special_tokens == {"<s>": 256, "</s>": 257}
    assert PlainVocabulary.of(ListVocabulary([b"a", None], [1])).special_tokens == {}
