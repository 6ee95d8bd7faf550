"""From the tokens of one request to its text: characters, stops, and what is held back until it is certain."""

from dataclasses import dataclass

from ramet.runtime.protocol import FinishReason, Prefix, SamplingParams, TextOutput, TokenOutput
from ramet.runtime.tokenizer import IncrementalDetokenizer, StopMatcher, Tokenizer


@dataclass(frozen=True, slots=True)
class Processed:
    """What one TokenOutput became."""

    output: TextOutput
    stopped_by_text: bool
    """A stop in the text ended a request that its tokens had not ended: the scheduler has to be told."""


class OutputProcessor:
    """The text side of one request; lives as long as it.

    The rule: ``token_ids`` (and their logprobs) are all tokens up to the one that ended the answer, that one
    included; ``text`` ends before the stop, or with ``include_stop`` behind it. No stop counts before
    ``min_tokens`` tokens. A stop that the last text completes turns LENGTH into STOP. The increments
    concatenate to the whole, however they were cut. What a Prefix grammar makes the answer begin with belongs
    to the prompt: it is not part of ``text``, and no stop is looked for in it.

    Raises (on construction):
        InvalidRequestError: a stop_regex that cannot be searched for in growing text.
    """

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self._params = params
        self._detokenizer = IncrementalDetokenizer(
            tokenizer, skip_special_tokens=params.skip_special_tokens, at_start=False
        )
        self._stops = StopMatcher(params.stop, params.stop_regex, include_stop=params.include_stop)
        # Characters of the prompt that the answer spells again.
        self._num_skipped = len(params.grammar.text) if isinstance(params.grammar, Prefix) else 0
        self.num_tokens = 0
        """Generated so far, up to the stop."""

    def push(self, output: TokenOutput) -> Processed:
        """The increment of one step."""
        text, num_kept = self._push_tokens(output)
        if self._stops.hit is None and output.finish_reason is not None:
            text += self._flush()
        finish_reason = output.finish_reason
        stop_reason: int | str | None = output.stop_token_id
        if self._stops.hit is not None and finish_reason in (None, FinishReason.STOP, FinishReason.LENGTH):
            finish_reason, stop_reason = FinishReason.STOP, self._stops.hit
        result = TextOutput(
            request_id=output.request_id,
            text=text,
            token_ids=output.token_ids[:num_kept],
            logprobs=None if output.logprobs is None else output.logprobs[:num_kept],
            prompt_logprobs=output.prompt_logprobs,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            error=output.error,
            error_kind=output.error_kind,
        )
        return Processed(result, finish_reason is not None and output.finish_reason is None)

    def _push_tokens(self, output: TokenOutput) -> tuple[str, int]:
        """The text that is certain now, and how many of the tokens belong to the answer: those behind a stop do
        not.
        """
        pieces: list[str] = []
        last = len(output.token_ids) - 1
        for index, token_id in enumerate(output.token_ids):
            self.num_tokens += 1
            if index == last and output.stop_token_id is not None and not self._params.include_stop:
                return "".join(pieces), index + 1
            text, hit = self._stops.push(
                self._skip(self._detokenizer.push((token_id,))),
                enabled=self.num_tokens >= self._params.min_tokens,
            )
            pieces.append(text)
            if hit is not None:
                return "".join(pieces), index + 1
        return "".join(pieces), last + 1

    def _flush(self) -> str:
        tail, hit = self._stops.push(
            self._skip(self._detokenizer.flush()), enabled=self.num_tokens >= self._params.min_tokens
        )
        return tail if hit is not None else tail + self._stops.flush()[0]

    def _skip(self, text: str) -> str:
        """The text without what is the prompt's."""
        if not self._num_skipped:
            return text
        kept = text[self._num_skipped :]
        self._num_skipped -= len(text) - len(kept)
        return kept
