"""Leading a matcher along tokens and texts, its masks checked at every place."""

from collections.abc import Callable, Sequence

import numpy as np

from ramet.runtime.grammar.backend import CompiledGrammar, GrammarMatcher, Vocabulary
from tests.runtime.grammar.fakes import ListVocabulary

PRINTABLE = [bytes([byte]) for byte in range(32, 127)]
WORDS = [
    b'{"',
    b'":',
    b'"}',
    b"ab",
    b"abc",
    b"  ",
    b"true",
    b"12",
    b"\\u",
    b"\\ud8",
    b"d8",
    b"\\\\",
    b"</",
    b"a>",
]
SPECIALS = [None, None, None]
TINY = ListVocabulary([*PRINTABLE, b"\n", b"\t", b"\x07", *WORDS, b"\xc3", b"\xa9", *SPECIALS], [115])
"""A small vocabulary of text; the last three tokens are control tokens, the middle one ends the output."""
STOP = 115
CONTROL = 114


def allowed(matcher: GrammarMatcher, vocabulary: Vocabulary) -> set[int]:
    row = np.full(-(-vocabulary.vocab_size // 32), -1, dtype=np.int32)
    matcher.fill_bitmask(row)
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")
    found = {int(token_id) for token_id in np.nonzero(bits)[0]}
    assert all(token_id < vocabulary.vocab_size for token_id in found), "a bit behind the vocabulary is set"
    return found


def takes(compiled: CompiledGrammar, token_ids: Sequence[int], vocabulary: Vocabulary) -> bool:
    """Whether the tokens and then a stop token are allowed; a mask never allows what is not accepted."""
    matcher = compiled.matcher()
    for count, token_id in enumerate([*token_ids, vocabulary.stop_token_ids[0]]):
        is_allowed = token_id in allowed(matcher, vocabulary)
        if not is_allowed:
            return False
        assert matcher.accept(token_id), f"token {token_id} at {count} is in the mask, and not accepted"
    assert matcher.is_terminated()
    assert not allowed(matcher, vocabulary)
    return True


def spelled(text: str | bytes, vocabulary: Vocabulary) -> list[int]:
    """The longest token at each place."""
    data = text.encode() if isinstance(text, str) else text
    known: dict[bytes, int] = {}
    for token_id in range(vocabulary.vocab_size):
        token = vocabulary.token_bytes(token_id)
        if token and token_id not in vocabulary.stop_token_ids:
            known.setdefault(token, token_id)
    longest = max(map(len, known))
    ids: list[int] = []
    while data:
        token = next(data[:n] for n in range(longest, 0, -1) if data[:n] in known)
        ids.append(known[token])
        data = data[len(token) :]
    return ids


def tiny_takes(compiled: CompiledGrammar) -> Callable[[str], bool]:
    return lambda text: takes(compiled, spelled(text, TINY), TINY)
