"""What a prompt gives up, against brute force over the vocabulary."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.lang.backends.local_healing import NOTHING, Healing, TokenHealer
from ramet.runtime.protocol import Choice, Prefix, SamplingParams
from ramet.runtime.tokenizer import FastTokenizer
from tests.lang.backends.small_tokenizer import CONTROL, small_tokenizer

TOKENIZER = small_tokenizer()
FREE = SamplingParams()


def healing(text: str, healable: str | None = None, params: SamplingParams = FREE) -> Healing:
    ids = TOKENIZER.encode(text, allow_special=True)
    return TokenHealer(TOKENIZER).healing(ids, text if healable is None else healable, params)


@pytest.mark.parametrize(
    ("text", "given_up"),
    [
        ("http:", ":"),
        ("http:/", ":/"),
        ("see the", " the"),
        ("Say ", " "),
        ("x\n", "\n"),
        ("xy", ""),
        ("", ""),
        ("http://x", ""),
    ],
)
def test_what_a_longer_token_could_have_spelled(text: str, given_up: str) -> None:
    found = healing(text)
    assert found.text == given_up
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids[len(ids) - found.num_tokens :]) == given_up


def test_several_tokens_are_given_up_where_one_could_spell_them_all() -> None:
    tokenizer = small_tokenizer(words=("abc",))
    ids = list(b"xab")
    assert TokenHealer(tokenizer).healing(ids, "xab", FREE) == Healing(2, "ab")


def test_special_tokens_are_not_given_up_and_bound_what_is() -> None:
    assert healing("x<|im_end|>") == NOTHING
    assert healing("<|im_end|>:").text == ":"


def test_only_what_the_program_wrote() -> None:
    assert healing("assistant\n", "") == NOTHING
    assert healing("x:/", ":/").text == ":/"
    assert healing("x:/", "/") == NOTHING, "the last token spells more"


def test_the_last_token_of_a_prompt_stays() -> None:
    assert healing(":") == NOTHING
    assert healing("::").text == ":"


def test_whole_characters_only() -> None:
    # A token for the second half of one character and the first of another.
    tokenizer = small_tokenizer(words=("é", "\u00a9 "))
    ids = list("x©".encode())
    found = TokenHealer(tokenizer).healing(ids, "x©", FREE)
    assert found == Healing(2, "©")


def test_a_space_that_encoding_put_in_front() -> None:
    ids = [*TOKENIZER.encode("<s>", allow_special=True), *TOKENIZER.encode(" the")]
    assert TokenHealer(TOKENIZER).healing(ids, "the", FREE) == Healing(1, " the")


def test_no_healing_where_a_stop_token_could_spell_it() -> None:
    newline, colon = TOKENIZER.encode("\n")[0], TOKENIZER.encode(":")[0]
    assert healing("x\n", params=SamplingParams(stop_token_ids=(newline,))) == NOTHING
    assert healing("x\n", params=SamplingParams(stop_token_ids=(colon,))).text == "\n"


def test_parameters_count_what_is_spelled_again() -> None:
    params = SamplingParams(max_tokens=5, min_tokens=2, grammar=Choice(("a",)))
    applied = Healing(2, ":/").apply(params)
    assert (applied.max_tokens, applied.min_tokens) == (7, 4)
    assert applied.grammar == Prefix(":/", Choice(("a",)))
    free = Healing(1, "x").apply(SamplingParams(max_tokens=None))
    assert (free.max_tokens, free.min_tokens, free.grammar) == (None, 0, Prefix("x"))
    assert NOTHING.apply(params) is params


def test_the_vocabulary_is_sorted_when_first_needed() -> None:
    tokenizer = small_tokenizer()
    healer = TokenHealer(tokenizer)
    assert healer.healing([1, 2], "", FREE) == NOTHING
    assert not healer.is_ready
    healer.healing([1, 2], "a", FREE)
    assert healer.is_ready


words = st.text(alphabet="ab:é", min_size=1, max_size=4)


def brute_force(tokenizer: FastTokenizer, ids: list[int], healable: bytes) -> tuple[int, bytes]:
    tokens = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
    wanted = 0
    for count in range(1, len(ids)):
        spelled = [tokens[i] for i in ids[-count:]]
        if any(one is None for one in spelled):
            break
        suffix = b"".join(one or b"" for one in spelled)
        if healable.endswith(suffix) and any(
            one is not None and one != suffix and one.startswith(suffix) for one in tokens
        ):
            wanted = count
    while wanted and wanted < len(ids):
        suffix = b"".join(tokens[i] or b"" for i in ids[-wanted:])
        if not healable.endswith(suffix) or any(tokens[i] is None for i in ids[-wanted:]):
            return 0, b""
        if suffix[0] & 0xC0 != 0x80:
            return wanted, suffix
        wanted += 1
    return 0, b""


@settings(max_examples=60)
@given(vocabulary=st.lists(words, max_size=6), text=st.text(alphabet="ab:é", max_size=8), cut=st.integers(0, 3))
def test_what_is_given_up_agrees_with_brute_force(vocabulary: list[str], text: str, cut: int) -> None:
    tokenizer = small_tokenizer(words=vocabulary)
    ids = tokenizer.encode(CONTROL[0] + text, allow_special=True)
    healable = text[cut:]
    count, spelled = brute_force(tokenizer, ids, healable.encode())
    found = TokenHealer(tokenizer).healing(ids, healable, FREE)
    assert (found.num_tokens, found.text.encode()) == (count, spelled)
