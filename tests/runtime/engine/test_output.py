"""The text side of a request, with one byte a token: cuts between characters and inside them."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.engine.output import OutputProcessor
from ramet.runtime.protocol import (
    FinishReason,
    InvalidRequestError,
    Logprob,
    Prefix,
    SamplingParams,
    TextOutput,
    TokenLogprobs,
    TokenOutput,
)
from ramet.runtime.tokenizer import ByteTokenizer
from ramet.runtime.tokenizer.byte_tokenizer import EOS_ID

TOKENIZER = ByteTokenizer()


@dataclass
class Run:
    """What became of a script of bytes: all increments, and whether the scheduler was to be told."""

    increments: list[TextOutput] = field(default_factory=list)
    stopped_by_text: bool = False

    @property
    def text(self) -> str:
        return "".join(item.text for item in self.increments)

    @property
    def token_ids(self) -> list[int]:
        return [token for item in self.increments for token in item.token_ids]

    @property
    def last(self) -> TextOutput:
        return self.increments[-1]


def play(
    script: bytes,
    params: SamplingParams,
    *,
    chunk: int = 1,
    end: FinishReason | None = FinishReason.LENGTH,
    stop_token_id: int | None = None,
) -> Run:
    """Feeds the script's tokens, ``chunk`` a step, until a stop in the text or the script's end."""
    processor = OutputProcessor(TOKENIZER, params)
    tokens = [*script, *([] if stop_token_id is None else [stop_token_id])]
    run = Run()
    for at in range(0, max(len(tokens), 1), chunk):
        is_last = at + chunk >= len(tokens)
        step = TokenOutput(
            request_id="r",
            token_ids=tokens[at : at + chunk],
            logprobs=[TokenLogprobs(Logprob(token, -1.0, 0)) for token in tokens[at : at + chunk]],
            finish_reason=end if is_last else None,
            stop_token_id=stop_token_id if is_last else None,
        )
        processed = processor.push(step)
        run.increments.append(processed.output)
        run.stopped_by_text = processed.stopped_by_text
        if processed.output.finish_reason is not None:
            break
    return run


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_a_stop_across_tokens_ends_the_text_before_it(chunk: int) -> None:
    run = play(b"one two STOP three", SamplingParams(stop=("STOP",)), chunk=chunk)
    assert run.text == "one two "
    assert bytes(run.token_ids) == b"one two STOP"
    assert (run.last.finish_reason, run.last.stop_reason) == (FinishReason.STOP, "STOP")
    assert run.stopped_by_text is (chunk < 100)
    assert [entry.chosen.token_id for item in run.increments for entry in item.logprobs or ()] == run.token_ids
    assert "S" not in run.text


def test_what_only_began_like_a_stop_is_kept() -> None:
    run = play(b"a ST ST", SamplingParams(stop=("STOP",)))
    assert run.text == "a ST ST"
    assert run.last.text == "ST"
    assert (run.last.finish_reason, run.last.stop_reason) == (FinishReason.LENGTH, None)


def test_include_stop_keeps_it() -> None:
    assert play(b"one STOP two", SamplingParams(stop=("STOP",), include_stop=True)).text == "one STOP"


def test_length_becomes_stop_where_the_last_text_completes_one() -> None:
    run = play(b"one STOP", SamplingParams(stop=("STOP",)))
    assert (run.text, run.last.finish_reason, run.stopped_by_text) == ("one ", FinishReason.STOP, False)
    run = play(b"one word", SamplingParams(stop_regex=(r"\bword\b",)))
    assert (run.text, run.last.finish_reason, run.last.stop_reason) == ("one ", FinishReason.STOP, r"\bword\b")


def test_an_abort_or_an_error_stays_one() -> None:
    for end in (FinishReason.ABORT, FinishReason.ERROR):
        run = play(b"one word", SamplingParams(stop_regex=(r"\bword\b",)), end=end)
        assert run.last.finish_reason is end


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_a_stop_token_belongs_to_the_tokens_and_not_to_the_text(chunk: int) -> None:
    run = play(b"hello.", SamplingParams(), chunk=chunk, end=FinishReason.STOP, stop_token_id=ord("x"))
    assert run.text == "hello."
    assert run.token_ids[-1] == ord("x")
    assert run.last.stop_reason == ord("x")
    kept = play(
        b"hello.", SamplingParams(include_stop=True), chunk=chunk, end=FinishReason.STOP, stop_token_id=ord("x")
    )
    assert kept.text == "hello.x"


def test_special_tokens_show_only_where_asked_for() -> None:
    shown = SamplingParams(include_stop=True, skip_special_tokens=False)
    assert play(b"a", shown, end=FinishReason.STOP, stop_token_id=EOS_ID).text == "a</s>"
    hidden = SamplingParams(include_stop=True)
    assert play(b"a", hidden, end=FinishReason.STOP, stop_token_id=EOS_ID).text == "a"


def test_no_stop_in_the_text_counts_before_min_tokens() -> None:
    params = SamplingParams(stop=(",",), min_tokens=5)
    run = play(b"a,b,c,d,e", params)
    assert (run.text, len(run.token_ids)) == ("a,b,c", 6)
    exact = play(b"abcd,e", params)
    assert (exact.text, len(exact.token_ids)) == ("abcd", 5)


def test_a_stop_may_begin_before_min_tokens_and_end_after() -> None:
    run = play(b"abcdEND", SamplingParams(stop=("END",), min_tokens=6))
    assert (run.text, run.last.stop_reason) == ("abcd", "END")


def test_characters_come_whole() -> None:
    run = play("a€😀ž".encode(), SamplingParams())
    assert [item.text for item in run.increments] == ["a", "", "", "€", "", "", "", "😀", "", "ž"]
    assert play("a€".encode()[:-1], SamplingParams()).text == "a\ufffd"


def test_a_regex_that_growing_text_cannot_decide_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="lookaround"):
        OutputProcessor(TOKENIZER, SamplingParams(stop_regex=("a(?=b)",)))


@given(
    text=st.text(alphabet="ab €😀", max_size=30),
    stops=st.lists(st.text(alphabet="ab €", min_size=1, max_size=3), max_size=3),
    chunk=st.integers(1, 7),
    min_tokens=st.integers(0, 20),
    include_stop=st.booleans(),
)
def test_increments_concatenate_to_the_same_whole_however_they_are_cut(
    text: str, stops: list[str], chunk: int, min_tokens: int, include_stop: bool
) -> None:
    params = SamplingParams(stop=tuple(stops), min_tokens=min_tokens, include_stop=include_stop)
    whole = play(text.encode(), params)
    cut = play(text.encode(), params, chunk=chunk)
    assert (cut.text, cut.token_ids) == (whole.text, whole.token_ids)
    assert (cut.last.finish_reason, cut.last.stop_reason) == (whole.last.finish_reason, whole.last.stop_reason)
    if min_tokens == 0:
        found = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
        end, start = min(found, default=(len(text), len(text)))
        assert whole.text == text[: end if include_stop else start]
        assert (whole.last.finish_reason is FinishReason.STOP) == bool(found)


@pytest.mark.parametrize("chunk", [1, 2, 5])
@pytest.mark.parametrize(
    ("prefix", "script", "stop", "text", "num_tokens"),
    [
        ("\n", "\nyes\n", ("\n",), "yes", 5),
        ("é:", "é:né", (), "né", 6),
        ("ab", "abbc", ("bb",), "bc", 4),
        ("abc", "ab", (), "", 2),
        ("abc", "ab", ("a",), "", 2),
    ],
)
def test_a_prefix_is_the_prompts(
    prefix: str, script: str, stop: tuple[str, ...], text: str, num_tokens: int, chunk: int
) -> None:
    run = play(script.encode(), SamplingParams(stop=stop, grammar=Prefix(prefix)), chunk=chunk)
    assert run.text == text
    assert len(run.token_ids) == num_tokens
