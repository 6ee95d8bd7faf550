"""A small real engine without a model: bytes for tokens, and an executor that says what its prompt tells it to.

The rest, scheduler, cache, output and faces, is the product's own.
"""

import time
import zlib
from collections.abc import Sequence

import numpy as np

from ramet.runtime.protocol import Logprob, TokenLogprobs
from ramet.runtime.scheduler.batch import BatchRow, RowResult, ScheduledBatch, with_mask
from ramet.runtime.tokenizer.byte_tokenizer import EOS_ID

VOCAB_SIZE = 258
HIDDEN_SIZE = 4
SAY = b"say:"
"""What stands behind it in the prompt is the answer, and then EOS."""


class SpeakingExecutor:
    """The next token is a function of the history (and of the seed, where the request is not greedy), like a
    model's.

    A prompt with ``say:`` is answered with what stands behind it. Without it, the answer is endless lower-case
    letters. ``boom`` in a prompt makes the step raise when the answer has reached 3 tokens, ``row error`` fails
    its row alone, and ``slow`` takes 5 ms a step.
    """

    def __init__(self, *, mask_seconds: float = 0.0) -> None:
        """``mask_seconds``: how long a row waits for its mask before it sits out."""
        self.mask_seconds = mask_seconds
        self.num_steps = 0
        self.computed_tokens = 0

    def run(self, batch: ScheduledBatch) -> list[RowResult]:
        self.num_steps += 1
        self.computed_tokens += batch.num_tokens
        prompts = [bytes(t for t in row.history[: row.num_prompt_tokens] if t < 256) for row in batch.rows]
        if any(b"slow" in prompt for prompt in prompts):
            time.sleep(0.005)
        for row, prompt in zip(batch.rows, prompts, strict=True):
            if b"boom" in prompt and len(row.history) - row.num_prompt_tokens == 3:
                raise RuntimeError("the device is on fire")
        return [self._row(row, prompt) for row, prompt in zip(batch.rows, prompts, strict=True)]

    def _row(self, row: BatchRow, prompt: bytes) -> RowResult:
        row, instead = with_mask(row, self.mask_seconds)
        if instead is not None:
            return instead
        prompt_logprobs = None
        if row.params.prompt_logprobs is not None:
            first = max(row.start + 1, row.params.prompt_logprobs_start, 1)
            last = min(row.end, row.num_prompt_tokens - 1)
            prompt_logprobs = [logprob_of(row.history[p]) for p in range(first, last + 1)]
        targets = [[logprob_of(token_id).chosen.logprob for token_id in ids] for ids in row.targets.token_ids]
        hidden = (
            np.array([state_at(row.history, p) for p in row.pooled], dtype=np.float32) if row.pooled else None
        )
        if not row.samples:
            return RowResult([], prompt_logprobs=prompt_logprobs, target_logprobs=targets, hidden_states=hidden)
        if b"row error" in prompt:
            return RowResult([], prompt_logprobs=prompt_logprobs, error="no token is allowed here")
        token_id = next_token(row, prompt)
        logprobs = None if row.params.logprobs is None else [logprob_of(token_id)]
        return RowResult(
            [token_id],
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            target_logprobs=targets,
            hidden_states=hidden,
        )


def state_at(token_ids: Sequence[int], position: int) -> list[float]:
    """The hidden state of a position: a function of everything up to it."""
    seed = zlib.crc32(repr(list(token_ids[: position + 1])).encode())
    state: list[float] = np.random.default_rng(seed).standard_normal(HIDDEN_SIZE).tolist()
    return state


def next_token(row: BatchRow, prompt: bytes) -> int:
    num_outputs = len(row.history) - row.num_prompt_tokens
    script = prompt.partition(SAY)[2]
    token_id = EOS_ID if num_outputs >= len(script) else script[num_outputs]
    if SAY not in prompt or token_id in row.banned_token_ids:
        seed = 0 if row.params.is_greedy else row.seed
        token_id = 97 + zlib.crc32(repr((list(row.history), seed)).encode()) % 26
    if row.mask is not None:
        allowed = [t for t in range(VOCAB_SIZE) if row.mask[0, t // 32] >> (t % 32) & 1]
        token_id = token_id if token_id in allowed else allowed[0]
    return token_id


def logprob_of(token_id: int) -> TokenLogprobs:
    return TokenLogprobs(Logprob(token_id, -0.5 - token_id / 1000, 0))


def answer_to(prompt: str, num_tokens: int) -> str:
    """The greedy answer to a prompt without ``say:``, worked out apart from the engine."""
    history = list(prompt.encode())
    for _ in range(num_tokens):
        history.append(97 + zlib.crc32(repr((history, 0)).encode()) % 26)
    return bytes(history[len(prompt.encode()) :]).decode()
