"""What of an answer is carried as ids, and what as text."""

from typing import Any

import pytest

from ramet.lang.backends.base import GenerateDelta
from ramet.lang.backends.local_answer import AnswerReader, append_answer
from ramet.lang.backends.local_healing import NOTHING, Healing
from ramet.lang.backends.local_transcript import NOTHING_SAID, Generated, Opening, Part
from ramet.runtime.protocol import FinishReason, Logprob, SamplingParams, TokenLogprobs
from tests.lang.backends.small_tokenizer import small_tokenizer

TOKENIZER = small_tokenizer()
END = TOKENIZER.special_tokens["<|im_end|>"]
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


def ids(*texts: str) -> list[int]:
    return [token_id for text in texts for token_id in TOKENIZER.encode(text, allow_special=True)]


def appended(
    token_ids: list[int],
    text: str,
    reason: FinishReason = LENGTH,
    stop_reason: int | str | None = None,
    healing: Healing = NOTHING,
    **params: Any,
) -> tuple[Part, ...]:
    answer = AnswerReader(healing, SamplingParams(**params), TOKENIZER)
    answer.push(GenerateDelta(token_ids=tuple(token_ids[:1]), text=text[:1]))
    answer.push(
        GenerateDelta(
            token_ids=tuple(token_ids[1:]), text=text[1:], finish_reason=reason, stop_reason=stop_reason
        )
    )
    said = append_answer(NOTHING_SAID, answer, None, TOKENIZER)
    return said.turns[0].parts if said.turns else ()


def test_all_ids_of_an_answer_that_was_cut() -> None:
    assert appended(ids(" the", "x"), " thex") == (Generated(tuple(ids(" the", "x")), " thex"),)


def test_bytes_that_are_no_text_yet_are_carried() -> None:
    assert appended([0xC3], "\ufffd") == (Generated((0xC3,), "\ufffd"),)


def test_without_the_token_that_ended_it() -> None:
    assert appended([*ids("x"), END], "x", STOP, END) == (Generated(tuple(ids("x")), "x"),)
    assert appended([END], "", STOP, END) == ()
    # A grammar that ended: no stop is named.
    assert appended([*ids("x"), END], "x", STOP, None) == (Generated(tuple(ids("x")), "x"),)


def test_an_end_that_was_ignored_is_carried() -> None:
    carried = (*ids("x"), END, *ids("y"))
    assert appended(list(carried), "xy", LENGTH, ignore_eos=True) == (Generated(carried, "xy"),)


@pytest.mark.parametrize("include_stop", [False, True])
def test_a_stop_token_of_the_request(include_stop: bool) -> None:
    (colon,) = ids(":")
    text = "x:" if include_stop else "x"
    kept = ids("x", ":") if include_stop else ids("x")
    assert appended(ids("x", ":"), text, STOP, colon, stop_token_ids=(colon,), include_stop=include_stop) == (
        Generated(tuple(kept), text),
    )


def test_a_stop_in_the_text_cuts_between_tokens() -> None:
    assert appended(ids("x", "\n\n"), "x", STOP, "\n\n", stop=("\n\n",)) == (Generated(tuple(ids("x")), "x"),)


def test_what_a_token_spells_in_front_of_the_stop_is_text() -> None:
    assert appended(ids("x", " there"), "x the", STOP, "re", stop=("re",)) == (
        Generated(tuple(ids("x")), "x"),
        " the",
    )
    assert appended(ids(" there"), " the", STOP, "re", stop=("re",)) == (" the",)


def test_a_stop_within_a_character_of_several_tokens() -> None:
    assert appended([*b"x", *"é".encode(), *b"y"], "x", STOP, "é", stop=("é",)) == (Generated((*b"x",), "x"),)


def test_a_stop_that_the_last_text_completes_leaves_out_the_end_of_turn_too() -> None:
    assert appended([*ids("x"), END], "x", STOP, r"x\b", stop_regex=(r"x\b",), include_stop=True) == (
        Generated(tuple(ids("x")), "x"),
    )


class TestHealed:
    HEALING = Healing(1, ":")

    def test_the_answer_replaces_what_it_spells_again(self) -> None:
        carried = tuple(ids("://", "x"))
        assert appended(list(carried), "//x", healing=self.HEALING) == (Generated(carried, "//x", 1, b":"),)

    def test_an_answer_that_ended_before_it_had_spelled_it(self) -> None:
        assert appended(ids(":"), "", healing=self.HEALING) == ()
        assert appended(ids(":", "</s>"), "", STOP, ids("</s>")[0], healing=self.HEALING) == ()

    def test_a_stop_within_the_token_that_heals(self) -> None:
        assert appended(ids("://"), "/", STOP, "/", healing=self.HEALING, stop=("/",), include_stop=True) == (
            "/",
        )
        assert appended(ids("://"), "", STOP, "//", healing=self.HEALING, stop=("//",)) == ()


def test_the_opening_is_recorded() -> None:
    opening, answer = Opening(" ", ""), AnswerReader(NOTHING, SamplingParams(), TOKENIZER)
    answer.push(GenerateDelta(token_ids=tuple(ids("x")), text="x", finish_reason=LENGTH))
    said = append_answer(NOTHING_SAID.with_role("assistant"), answer, opening, TOKENIZER)
    assert said.turns[0].opening == opening


def read(
    texts: list[str], healing: Healing, chunk: int, *, emitted: str | None = None, **params: Any
) -> tuple[AnswerReader, list[GenerateDelta]]:
    """An engine's answer of one token a text, in increments. ``emitted``: the engine's text, given with the
    last increment."""
    token_ids = ids(*texts)
    assert len(token_ids) == len(texts)
    reader, deltas, skipped = AnswerReader(healing, SamplingParams(**params), TOKENIZER), [], len(healing.text)
    for at in range(0, len(token_ids), chunk):
        text = "".join(texts[at : at + chunk])
        visible = text[skipped:]
        skipped = max(0, skipped - len(text))
        is_last = at + chunk >= len(token_ids)
        if emitted is not None:
            visible = emitted if is_last else ""
        deltas.append(
            reader.push(
                GenerateDelta(
                    text=visible,
                    token_ids=tuple(token_ids[at : at + chunk]),
                    logprobs=tuple(TokenLogprobs(Logprob(i, -1.0, 0)) for i in token_ids[at : at + chunk]),
                    finish_reason=STOP if is_last else None,
                    stop_reason="z" if is_last else None,
                )
            )
        )
    return reader, deltas


@pytest.mark.parametrize("chunk", [1, 2, 4])
class TestReading:
    HEALING = Healing(2, ":/")

    @pytest.mark.parametrize(
        ("spelled", "kept"),
        [
            ([":", "/", "x", "y"], ["x", "y"]),
            ([":", "//", "x"], ["//", "x"]),
            (["://", "x"], ["://", "x"]),
            ([":", "/"], []),
            ([":"], []),
        ],
    )
    def test_tokens_that_spell_nothing_new_are_taken_out(
        self, spelled: list[str], kept: list[str], chunk: int
    ) -> None:
        reader, deltas = read(spelled, self.HEALING, chunk, max_tokens=8)
        found = [token_id for delta in deltas for token_id in delta.token_ids]
        assert found == ids(*kept)
        assert [entry.chosen.token_id for delta in deltas for entry in delta.logprobs or ()] == found
        assert reader.token_ids == ids(*spelled)
        assert reader.text == "".join(delta.text for delta in deltas) == "".join(spelled)[2:]
        assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == (STOP, "z")

    @pytest.mark.parametrize("emitted", [None, "/x", "/"])
    def test_tokens_beyond_the_limit_are_cut_off(self, emitted: str | None, chunk: int) -> None:
        # Two tokens were given up and one spells them, so the engine makes one more than the 2 asked for.
        reader, deltas = read(["://", "x", "y", " the"], self.HEALING, chunk, emitted=emitted, max_tokens=2)
        assert [token_id for delta in deltas for token_id in delta.token_ids] == ids("://", "x")
        assert reader.token_ids == ids("://", "x")
        assert reader.text == "".join(delta.text for delta in deltas) == "/x"
        assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == (LENGTH, None)
        assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)

    def test_without_healing_nothing_is_cut(self, chunk: int) -> None:
        reader, deltas = read(["x", "y"], NOTHING, chunk, max_tokens=1)
        assert reader.token_ids == ids("x", "y")
        assert deltas[-1].finish_reason is STOP


def test_a_cut_within_a_character() -> None:
    reader = AnswerReader(Healing(1, ":"), SamplingParams(max_tokens=1), TOKENIZER)
    first, second = "é".encode()
    assert reader.push(GenerateDelta(token_ids=(*b":", first), text="")).token_ids == (first,)
    last = reader.push(GenerateDelta(token_ids=(second,), text="é", finish_reason=LENGTH))
    assert (last.text, last.token_ids) == ("\ufffd", ())
    assert reader.token_ids == [*b":", first]
