"""Token ids of transcripts: whole conversations' ids, carried answers, tails that answers replaced."""

import pytest

from ramet.lang.backends.local_encoding import Encoded, TranscriptEncoder
from ramet.lang.backends.local_rendering import TranscriptRenderer
from ramet.lang.backends.local_transcript import NOTHING_SAID, Generated, Transcript
from ramet.runtime.tokenizer import FastTokenizer, encode_chat
from tests.lang.backends.small_tokenizer import TEMPLATES, THINKER, small_sentencepiece, small_tokenizer
from tests.lang.backends.test_local_rendering import NO_SYSTEM, messages_of, transcript_of


def encoder_of(tokenizer: FastTokenizer, *, special_text: bool = False) -> TranscriptEncoder:
    return TranscriptEncoder(tokenizer, TranscriptRenderer(tokenizer, special_text=special_text))


@pytest.mark.parametrize("bos", [None, "<s>"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_conversations_have_the_ids_of_the_whole(name: str, bos: str | None) -> None:
    tokenizer = small_tokenizer(TEMPLATES[name], bos=bos)
    turns = [*NO_SYSTEM[:-1], ("assistant", "http:<|im_end|>//</s>")]
    encoder, known = encoder_of(tokenizer), Encoded([])
    for count in range(1, len(turns) + 1):
        known = encoder.encode(transcript_of(turns[:count]), known)
        assert known.token_ids == encode_chat(
            tokenizer, messages_of(turns[:count]), add_generation_prompt=False
        )


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_tokenizer_that_puts_a_space_in_front(name: str) -> None:
    tokenizer = small_sentencepiece(TEMPLATES[name])
    encoder = encoder_of(tokenizer)
    for count in range(1, len(NO_SYSTEM) + 1):
        turns = NO_SYSTEM[:count]
        expected = encode_chat(tokenizer, messages_of(turns), add_generation_prompt=False)
        assert encoder.encode(transcript_of(turns)).token_ids == expected
    the = tokenizer.encode(" the", at_start=False)
    said = NOTHING_SAID.with_text("x").with_generated(Generated(tuple(the), " the")).with_text(" is")
    ids = encoder.encode(said).token_ids
    assert ids == [*tokenizer.encode("x", add_bos=True), *the, *tokenizer.encode(" is", at_start=False)]
    assert tokenizer.decode(ids) == "x the is"


def test_generated_ids_are_carried_as_they_are() -> None:
    tokenizer = small_tokenizer()
    # Not what the tokenizer makes of " the".
    odd = Generated(tuple(b" the"), " the")
    said = transcript_of([("user", "hi")]).with_role("assistant").with_generated(odd).with_text(" is")
    encoder = encoder_of(tokenizer)
    opened = encoder.encode(said)
    assert opened.token_ids[-5:] == [*b" the", *tokenizer.encode(" is")]
    assert opened.healable == " is"
    closed = encoder.encode(said.without_role(), opened)
    end = tokenizer.encode(" is<|im_end|>\n", allow_special=True)
    assert closed.token_ids == [*opened.token_ids[:-1], *end]
    assert closed.healable == ""
    for before, after in zip(opened.pieces[0], closed.pieces[0], strict=True):
        assert before is after, "what has not changed is not tokenised again"


def test_of_text_that_has_grown_only_the_end_is_tokenised() -> None:
    tokenizer = small_tokenizer()
    encoder = encoder_of(tokenizer)
    said = transcript_of([("system", "Be brief."), ("user", "http:")], open_last=True)
    before = encoder.encode(said)
    grown = encoder.encode(said.with_text("//"), before)
    assert grown.token_ids == encoder.encode(said.with_text("//")).token_ids
    (first,), (second,) = before.pieces, grown.pieces
    assert len(first) == 3
    assert all(one is other for one, other in zip(first[:-1], second[:-1], strict=True))
    assert first[-1] != second[-1]


def test_a_special_token_that_takes_the_space_in_front_is_no_boundary() -> None:
    tokenizer = small_tokenizer(strips=("<|im_end|>",))
    encoder = encoder_of(tokenizer)
    turns = [("user", "hi \n"), ("assistant", "y  ")]
    encoded = encoder.encode(transcript_of(turns))
    assert encoded.token_ids == encode_chat(tokenizer, messages_of(turns), add_generation_prompt=False)
    starts = {chunk[0][0][:12] for chunk, _ in encoded.pieces[0]}
    assert starts == {"<|im_start|>"}


def test_text_on_both_sides_of_a_call_is_tokenised_as_one() -> None:
    tokenizer = small_tokenizer()
    encoder = encoder_of(tokenizer)
    before = encoder.encode(NOTHING_SAID.with_text("http:"))
    after = encoder.encode(NOTHING_SAID.with_text("http:").with_text("//"), before)
    assert before.token_ids == tokenizer.encode("http:")
    assert after.token_ids == tokenizer.encode("http://")


def test_an_answer_takes_the_place_of_the_tokens_that_it_spells_again() -> None:
    tokenizer = small_tokenizer()
    http, slashes = tokenizer.encode("http://")
    said = NOTHING_SAID.with_text("http:").with_generated(Generated((slashes,), "//", 1, b":"))
    encoded = encoder_of(tokenizer).encode(said.with_text("x"))
    assert encoded.token_ids == [http, slashes, *b"x"]


def test_where_the_template_rewrote_that_text_the_answer_is_tokenised_by_itself() -> None:
    tokenizer = small_tokenizer(THINKER)
    said = transcript_of([("user", "hi")]).with_role("assistant").with_text("hm</think>")
    said = said.with_generated(Generated((*b">x",), "x", 1, b">"))
    head = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert encoder_of(tokenizer).encode(said).token_ids == tokenizer.encode(head + "x", allow_special=True)


def test_special_text_outside_roles() -> None:
    tokenizer = small_tokenizer()
    said = NOTHING_SAID.with_text("a<|im_end|>")
    end = tokenizer.special_tokens["<|im_end|>"]
    assert end not in encoder_of(tokenizer).encode(said).token_ids
    assert encoder_of(tokenizer, special_text=True).encode(said).token_ids == [*b"a", end]


@pytest.mark.parametrize(
    ("said", "healable"),
    [
        (NOTHING_SAID, ""),
        (NOTHING_SAID.with_text(" a "), " a "),
        (transcript_of([("user", "hi")]).with_role("assistant"), ""),
        (transcript_of([("user", "hi")]).with_role("assistant").with_text(" a"), "a"),
        (transcript_of([("user", "hi")]).with_role("assistant").with_text("  "), ""),
        (transcript_of([("user", "hi")]), ""),
    ],
)
def test_only_the_programs_own_text_can_be_healed(said: Transcript, healable: str) -> None:
    # A template that trims.
    tokenizer = small_tokenizer(TEMPLATES["llama"])
    assert encoder_of(tokenizer).encode(said).healable == healable
