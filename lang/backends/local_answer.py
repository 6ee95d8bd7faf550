"""Answers as they come from the engine, and what of them a prompt carries on: the ids as far as they spell the
answer's text, and the rest as text."""

import codecs
from collections.abc import Sequence

import msgspec

from ramet.lang.backends.base import GenerateDelta
from ramet.lang.backends.local_healing import Healing
from ramet.lang.backends.local_transcript import Generated, Opening, Transcript
from ramet.runtime.protocol import FinishReason, SamplingParams
from ramet.runtime.tokenizer import IncrementalDetokenizer, Tokenizer


class AnswerReader:
    """One answer as its increments come: what of them is the program's, and what the prompt carries on.

    ``token_ids`` are the engine's, those that heal the prompt included; ``text`` is the answer's. The engine
    may spell what was healed with fewer tokens than the prompt had, and then generates a few more than
    ``max_tokens`` behind it: those are cut off, as if it had stopped there.
    """

    def __init__(self, healing: Healing, params: SamplingParams, tokenizer: Tokenizer) -> None:
        self.healing = healing
        self.params = params
        self.token_ids: list[int] = []
        self.text = ""
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self._tokenizer = tokenizer
        self._unspelled = healing.text.encode()
        self._num_healing = 0
        """Leading tokens that only spell what was healed."""

    def push(self, delta: GenerateDelta) -> GenerateDelta:
        """An increment of the engine as the program gets it: its tokens are those that spell something of the
        answer's text."""
        before = len(self.token_ids)
        self.token_ids += delta.token_ids
        self._spell(delta.token_ids)
        start = max(0, self._num_healing - before)
        end, text = len(delta.token_ids), delta.text
        finish_reason, stop_reason = delta.finish_reason, delta.stop_reason
        if self.healing.num_tokens and self.params.max_tokens is not None:
            limit = self._num_healing + self.params.max_tokens
            if len(self.token_ids) > limit:
                end = max(0, limit - before)
                text = self._text_within(limit, text, is_last=finish_reason is not None)
                if finish_reason is not None:
                    del self.token_ids[limit:]
                    finish_reason, stop_reason = FinishReason.LENGTH, None
        self.text += text
        self.finish_reason, self.stop_reason = finish_reason, stop_reason
        return msgspec.structs.replace(
            delta,
            text=text,
            token_ids=delta.token_ids[start:end],
            logprobs=None if delta.logprobs is None else delta.logprobs[start:end],
            finish_reason=finish_reason,
            stop_reason=stop_reason,
        )

    def _spell(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            if not self._unspelled:
                return
            spelled = self._tokenizer.token_bytes(token_id) or b""
            self._num_healing += len(spelled) <= len(self._unspelled)
            self._unspelled = self._unspelled[len(spelled) :]

    def _text_within(self, limit: int, text: str, *, is_last: bool) -> str:
        """What of the increment's text the first ``limit`` tokens spell; the last increment brings all that is
        still missing of it."""
        detokenizer = IncrementalDetokenizer(
            self._tokenizer, skip_special_tokens=self.params.skip_special_tokens, at_start=False
        )
        certain = detokenizer.push(self.token_ids[:limit])[len(self.healing.text) :]
        if is_last:
            return (certain + detokenizer.flush())[len(self.text) :]
        return text[: max(0, len(certain) - len(self.text))]


def append_answer(
    transcript: Transcript, answer: AnswerReader, opening: Opening | None, tokenizer: Tokenizer
) -> Transcript:
    """The transcript with an answer behind it that has ended. ``opening``: of the turn, where the answer begins
    it.

    The token that stopped the answer is left out: where a turn ends, its template writes the end. A stop in the
    text may lie within a token; the ids are carried up to that token, and what it spells of the answer's text
    is appended as text.
    """
    text, healing = answer.text, answer.healing
    ids = answer.token_ids[: _num_kept(answer, tokenizer)]
    num_chars = len(healing.text) + len(text)
    if isinstance(answer.stop_reason, str):
        skip = answer.params.skip_special_tokens
        num_ids, num_chars = _spelled_within(ids, len(healing.text) + len(text), tokenizer, skip=skip)
        ids = ids[:num_ids]
    carried = num_chars - len(healing.text)
    if not ids or carried < 0 or (not carried and healing.num_tokens):
        return transcript.with_text(text)
    generated = Generated(tuple(ids), text[:carried], healing.num_tokens, healing.text.encode())
    return transcript.with_generated(generated, opening).with_text(text[carried:])


def _num_kept(answer: AnswerReader, tokenizer: Tokenizer) -> int:
    """How many tokens there are before the one that ended the answer."""
    if answer.finish_reason is not FinishReason.STOP or not answer.token_ids:
        return len(answer.token_ids)
    last = answer.token_ids[-1]
    is_own_stop = last == answer.stop_reason and not answer.params.include_stop
    return len(answer.token_ids) - (last in tokenizer.stop_token_ids or is_own_stop)


def _spelled_within(
    token_ids: Sequence[int], num_chars: int, tokenizer: Tokenizer, *, skip: bool
) -> tuple[int, int]:
    """The most leading tokens that spell whole characters, ``num_chars`` at most; and how many they spell."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    best, count = (0, 0), 0
    for index, token_id in enumerate(token_ids):
        count += len(decoder.decode(tokenizer.output_bytes(token_id, skip_special_tokens=skip)))
        if count > num_chars:
            break
        if not decoder.getstate()[0]:
            best = (index + 1, count)
    return best
