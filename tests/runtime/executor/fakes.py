"""A model whose logits are a hash of the whole history, read back through the page table; and a driver of
requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ramet.runtime.attention.base import AttentionMetadata
from ramet.runtime.executor.model_runner import ModelRunner
from ramet.runtime.forward import AttentionPlan, AttentionSpec, ForwardBatch
from ramet.runtime.models.config import ModelConfig
from ramet.runtime.protocol import SamplingParams, TokenLogprobs
from ramet.runtime.scheduler.batch import NO_TARGETS, BatchRow, RowResult, ScheduledBatch, Targets

SPEC = AttentionSpec(layer_id=0, scale=1.0)
EMPTY = -1


class HashAttention:
    """An AttentionBackend whose pool holds token ids. A query's result is a hash of the tokens up to its
    own.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.page_size = page_size
        self.pool = np.full(num_pages * page_size, EMPTY, dtype=np.int64)
        self.plans: list[AttentionMetadata] = []

    def plan(self, metadata: AttentionMetadata) -> AttentionPlan:
        self.plans.append(metadata)
        return HashPlan(self, metadata)


@dataclass(frozen=True)
class HashPlan:
    attention: HashAttention
    metadata: AttentionMetadata

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
        slots = [self._slots(row) for row in range(len(self.metadata.query_lens))]
        written = k.flatten().long().numpy()
        before = 0
        for row, query_len in enumerate(self.metadata.query_lens):
            self.attention.pool[slots[row][-query_len:]] = written[before : before + query_len]
            before += query_len
        out: list[int] = []
        for row, query_len in enumerate(self.metadata.query_lens):
            tokens = self.attention.pool[slots[row]].tolist()
            assert EMPTY not in tokens
            out += hashes(tokens)[-query_len:]
        return torch.tensor(out, dtype=torch.float64)[:, None, None]

    def _slots(self, row: int) -> list[int]:
        positions = np.arange(self.metadata.kv_lens[row])
        pages = self.metadata.page_table[row, positions // self.attention.page_size].astype(np.int64)
        slots: list[int] = (pages * self.attention.page_size + positions % self.attention.page_size).tolist()
        return slots


def hashes(tokens: Sequence[int]) -> list[int]:
    """One number for each prefix."""
    out, value = [], 7
    for token in tokens:
        value = (value * 1_000_003 + token + 1) % 2_147_483_647
        out.append(value)
    return out


class HashModel:
    """A Model without weights. ``broken``: input tokens behind which logits are NaN."""

    def __init__(self, vocab_size: int, broken: Sequence[int] = ()) -> None:
        self._config = ModelConfig(
            architecture="Hash",
            vocab_size=vocab_size,
            hidden_size=1,
            intermediate_size=1,
            num_layers=1,
            num_heads=1,
            num_kv_heads=1,
            head_dim=1,
            max_positions=10_000,
        )
        self._broken = list(broken)
        self.num_forwards = 0
        self.most_logits = 0

    @property
    def config(self) -> ModelConfig:
        return self._config

    def forward(self, batch: ForwardBatch) -> Tensor:
        return self._logits(self._hidden_states(batch))

    def _hidden_states(self, batch: ForwardBatch) -> Tensor:
        self.num_forwards += 1
        assert batch.input_ids.shape == batch.positions.shape
        ids = batch.input_ids.double()[:, None, None]
        hidden = batch.attention(ids, ids, ids, SPEC)[:, 0, 0]
        hidden[torch.isin(batch.input_ids, torch.tensor(self._broken, dtype=torch.int64))] = float("nan")
        return hidden[batch.logit_indices][:, None]

    def _logits(self, hidden_states: Tensor) -> Tensor:
        self.most_logits = max(self.most_logits, len(hidden_states))
        out = torch.full((len(hidden_states), self._config.vocab_size), float("nan"))
        for row, value in enumerate(hidden_states[:, 0].tolist()):
            if value == value:
                noise = np.random.default_rng(int(value)).standard_normal(self._config.vocab_size)
                out[row] = torch.from_numpy(noise * 3).float()
        return out


class HeadedHashModel(HashModel):
    """The same with its head apart."""

    def hidden_states(self, batch: ForwardBatch) -> Tensor:
        return self._hidden_states(batch)

    def logits(self, hidden_states: Tensor) -> Tensor:
        return self._logits(hidden_states)


@dataclass
class DrivenRequest:
    """What a scheduler would know of a request, for tests that play the scheduler."""

    request_id: str
    history: list[int]
    params: SamplingParams
    slot: int
    pages: list[int]
    """All it will need, given to it beforehand; named to the executor as they come into use."""
    seed: int = 0
    num_prompt_tokens: int = 0
    num_computed_tokens: int = 0
    num_named_pages: int = 0
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    targets: Targets = NO_TARGETS
    target_logprobs: list[list[float]] = field(default_factory=list)
    results: list[RowResult] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.history)

    @property
    def output(self) -> list[int]:
        return self.history[self.num_prompt_tokens :]

    def row(self, page_size: int, max_tokens: int = 10**9, drafts: Sequence[int] = ()) -> BatchRow:
        """The next max_tokens known tokens, and the drafts where that reaches the end."""
        start = self.num_computed_tokens
        known = self.history[start : start + max_tokens]
        samples = start + len(known) == len(self.history)
        drafts = list(drafts) if samples else []
        num_pages = -(-(start + len(known) + len(drafts)) // page_size)
        new_pages = self.pages[self.num_named_pages : num_pages]
        row = BatchRow(
            request_id=self.request_id,
            slot=self.slot,
            start=start,
            token_ids=known + drafts,
            first_new_page=self.num_named_pages,
            new_pages=new_pages,
            num_drafts=len(drafts),
            samples=samples,
            params=self.params,
            seed=self.seed,
            num_prompt_tokens=self.num_prompt_tokens,
            history=self.history,
            targets=self.targets.within(start, start + len(known)),
        )
        self.num_named_pages = max(num_pages, self.num_named_pages)
        return row

    def take(self, row: BatchRow, result: RowResult) -> None:
        self.results.append(result)
        self.num_computed_tokens = row.end - row.num_drafts
        if result.token_ids:
            self.num_computed_tokens += len(result.token_ids) - 1
        self.history += result.token_ids
        self.prompt_logprobs += result.prompt_logprobs or []
        self.target_logprobs += result.target_logprobs or []

    def preempt(self, slot: int, pages: list[int]) -> None:
        """Everything computed is lost; it goes on in another slot, on other pages."""
        self.slot, self.pages = slot, pages
        self.num_computed_tokens = self.num_named_pages = 0


def step(runner: ModelRunner, page_size: int, requests: Sequence[DrivenRequest], **chunk: Any) -> None:
    """One step of all requests."""
    rows = [request.row(page_size, **chunk) for request in requests]
    results = runner.run(ScheduledBatch(step_id=0, rows=tuple(rows)))
    for request, row, result in zip(requests, rows, results, strict=True):
        request.take(row, result)
