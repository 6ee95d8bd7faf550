"""A real engine on a model of random numbers: the next token's distribution is a function of the history."""

import math
import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ramet.runtime.engine.client import EngineInfo
from ramet.runtime.engine.core import EngineCore
from ramet.runtime.engine.face import EngineFace
from ramet.runtime.engine.loop import EngineLoop
from ramet.runtime.grammar import ChoiceBackend, GrammarCompiler, PrefixBackend
from ramet.runtime.protocol import Logprob, TokenLogprobs
from ramet.runtime.scheduler import BatchRow, RowResult, ScheduledBatch, Scheduler, SchedulerConfig
from ramet.runtime.scheduler.batch import with_mask
from ramet.runtime.tokenizer import Tokenizer

CONTEXT = 2000
Row = npt.NDArray[np.float64]


@dataclass
class RandomModel:
    """Log probabilities from a hash of the history. ``never``: tokens of probability 0."""

    vocab_size: int
    spread: float = 3.0
    never: tuple[int, ...] = ()

    def logprobs(self, history: Sequence[int]) -> Row:
        """[vocab_size]"""
        seed = zlib.crc32(np.asarray(history, dtype=np.int64).tobytes())
        logits: Row = self.spread * np.random.default_rng(seed).standard_normal(self.vocab_size)
        logits[list(self.never)] = -np.inf
        logits -= logits.max() + math.log(np.exp(logits - logits.max()).sum())
        return logits

    def logprob(self, token_ids: Sequence[int], start: int) -> list[float]:
        """Of the tokens from ``start`` on, each after all before it."""
        return [float(self.logprobs(token_ids[:i])[token_ids[i]]) for i in range(start, len(token_ids))]


class RandomExecutor:
    """Samples from a RandomModel; greedy, or with the row's seed. Keeps what it was asked to compute."""

    def __init__(self, model: RandomModel) -> None:
        self.model = model
        self.prompts: list[list[int]] = []
        self.num_masked = 0

    def run(self, batch: ScheduledBatch) -> list[RowResult]:
        return [self._row(row) for row in batch.rows]

    def _row(self, row: BatchRow) -> RowResult:
        row, instead = with_mask(row, 0.0)
        if instead is not None:
            return instead
        history = list(row.history)
        prompt_logprobs = None
        if row.params.prompt_logprobs is not None:
            first = max(row.start + 1, row.params.prompt_logprobs_start, 1)
            last = min(row.end, row.num_prompt_tokens - 1)
            prompt_logprobs = [self._entry(history[:p], history[p]) for p in range(first, last + 1)]
        behind = [history[: position + 1] for position in range(row.targets.first, row.targets.end)]
        targets = [
            [float(self.model.logprobs(known)[token_id]) for token_id in token_ids]
            for known, token_ids in zip(behind, row.targets.token_ids, strict=True)
        ]
        if not row.samples:
            return RowResult([], prompt_logprobs=prompt_logprobs, target_logprobs=targets)
        if len(history) == row.num_prompt_tokens:
            self.prompts.append(history)
        logprobs = self.model.logprobs(history)
        if row.mask is not None:
            self.num_masked += 1
            allowed = np.unpackbits(row.mask[0].view(np.uint8), bitorder="little")[: self.model.vocab_size]
            logprobs = np.where(allowed, logprobs, -np.inf)
        logprobs[list(row.banned_token_ids)] = -np.inf
        token_id = int(logprobs.argmax())
        if not row.params.is_greedy:
            draw = random.Random(hash((row.seed, len(history))))
            token_id = draw.choices(range(self.model.vocab_size), np.exp(logprobs).tolist())[0]
        entries = None if row.params.logprobs is None else [self._entry(history, token_id)]
        return RowResult([token_id], logprobs=entries, prompt_logprobs=prompt_logprobs, target_logprobs=targets)

    def _entry(self, history: Sequence[int], token_id: int) -> TokenLogprobs:
        return TokenLogprobs(Logprob(token_id, float(self.model.logprobs(history)[token_id]), 0))


@dataclass
class RandomEngine:
    face: EngineFace
    model: RandomModel
    executor: RandomExecutor


def open_random(tokenizer: Tokenizer, *, grammars: tuple[str, ...] = ("choice", "prefix")) -> RandomEngine:
    scheduler = Scheduler(
        SchedulerConfig(
            num_pages=4 * CONTEXT,
            page_size=1,
            context_length=CONTEXT,
            vocab_size=tokenizer.vocab_size,
            max_running_requests=16,
            max_tokens_per_step=256,
        ),
        stop_token_ids=tokenizer.stop_token_ids,
    )
    model = RandomModel(tokenizer.vocab_size)
    executor = RandomExecutor(model)
    choices = ChoiceBackend(tokenizer)
    grammar = GrammarCompiler(PrefixBackend(choices, lambda: choices.tokens))
    core = EngineCore(scheduler, executor, tokenizer, grammar, seed=1)
    info = EngineInfo(
        model="random",
        vocab_size=tokenizer.vocab_size,
        context_length=CONTEXT,
        kv_tokens=4 * CONTEXT,
        grammars=grammars,
    )
    return RandomEngine(EngineFace(EngineLoop(core, info), tokenizer), model, executor)
