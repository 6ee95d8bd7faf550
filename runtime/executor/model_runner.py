"""ModelRunner: one device's executor. Batch in, tokens out."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ramet.runtime.attention.base import AttentionBackend
from ramet.runtime.executor.batch_builder import BatchBuilder, BuiltBatch
from ramet.runtime.executor.decode_graphs import DecodeGraphs
from ramet.runtime.executor.hidden_states import with_hidden_states
from ramet.runtime.executor.host_memory import keep_freed_memory
from ramet.runtime.executor.logprobs import target_logprobs, token_logprobs
from ramet.runtime.executor.sampler import NOT_FINITE, Sampler, not_finite_rows
from ramet.runtime.forward import ForwardBatch
from ramet.runtime.models.model import Model
from ramet.runtime.protocol import SamplingParams, TokenLogprobs
from ramet.runtime.scheduler.batch import BatchRow, RowResult, ScheduledBatch, with_mask

# Logits made at a time, elements: 128 MiB, 682 positions of 49,152 tokens or 128 of 262,144.
MAX_LOGIT_ELEMENTS = 1 << 25


@dataclass(frozen=True, slots=True)
class RunnerConfig:
    """Sizes that a runner is built for."""

    max_running_requests: int
    """Slots 0..max_running_requests-1 are used."""
    max_tokens_per_request: int
    """The context length: no row ends behind it."""
    page_size: int
    max_logit_elements: int = MAX_LOGIT_ELEMENTS
    """Logits (positions x vocabulary) that are in memory at a time."""
    mask_patience: float = 0.02
    """Seconds that a step waits for masks once the model has run; rows without them then sit out."""


@runtime_checkable
class HeadApart(Protocol):
    """A Model whose head can be applied to a part of the wanted tokens."""

    def hidden_states(self, batch: ForwardBatch) -> Tensor:
        """What the head reads, for the tokens at batch.logit_indices: [num_logits, hidden_size]."""
        ...

    def logits(self, hidden_states: Tensor) -> Tensor:
        """``forward(batch) == logits(hidden_states(batch))``."""
        ...


_Logits = Callable[[int, int], Tensor]
"""Logits first..end-1 of a built batch, [end - first, vocab_size] fp32, owned by the caller."""


class ModelRunner:
    """An Executor over one model on one device.

    State: the page table and what the sampler keeps, each by slot; a row whose pages are named from the first
    one on takes its slot over. The KV itself belongs to the attention backend's pool.
    """

    def __init__(
        self,
        model: Model,
        attention: AttentionBackend,
        config: RunnerConfig,
        device: torch.device,
        sampler: Sampler | None = None,
        graphs: DecodeGraphs | None = None,
    ) -> None:
        """graphs: of the same model and attention; None: every step runs as it is."""
        self._graphs = graphs
        self._model = model
        self._config = config
        self._device = device
        vocab_size = model.config.vocab_size
        self._positions_at_once = max(1, config.max_logit_elements // vocab_size)
        self._sampler = Sampler(vocab_size, device) if sampler is None else sampler
        self._builder = BatchBuilder(
            attention,
            max_running_requests=config.max_running_requests,
            max_pages_per_request=-(-config.max_tokens_per_request // config.page_size),
            page_size=config.page_size,
            device=device,
        )

    def run(self, batch: ScheduledBatch) -> list[RowResult]:
        """Compute the rows' KV and sample where they sample; one result per row, in order.

        Raises what the model raises, which fails the whole batch. Errors of single rows are in their results.
        """
        return self.launch(batch)()

    @property
    def runs_apart(self) -> bool:
        """See ``LaunchingExecutor``: a GPU computes while this process goes on."""
        return self._device.type != "cpu"

    def launch(self, batch: ScheduledBatch) -> Callable[[], list[RowResult]]:
        """``run`` in two parts: the model, and what waits for its logits."""
        rows: Sequence[BatchRow] = batch.rows
        if not rows:
            return list
        for row in rows:
            if row.first_new_page == 0 and row.new_pages:
                self._sampler.forget(row.slot)
        with torch.inference_mode():
            built = self._builder.build(rows)
            logits, pooled = self._forward(built)
        return lambda: self._finish(rows, built, logits, pooled)

    def _finish(
        self, rows: Sequence[BatchRow], built: BuiltBatch, logits: _Logits, pooled: Tensor | None
    ) -> list[RowResult]:
        with torch.inference_mode():
            # The model has run, or is running on its device: by now the masks are there, as a rule.
            rows, instead = self._with_masks(rows)
            results = self._sampled(rows, built, logits)
            for index, result in instead.items():
                if results[index].error is None:
                    results[index] = result
            results = self._with_prompt_logprobs(rows, built, logits, results)
            results = self._with_target_logprobs(rows, built, logits, results)
            return with_hidden_states(rows, pooled, results)

    def warmup(self, num_pages: int = 4) -> None:
        """Run one prefill of ``num_pages`` pages and one decode step, so that the first request does not pay
        for what is done once: compiled kernels, packed weights, thread pools. On a CPU the process keeps freed
        memory from then on (see ``keep_freed_memory``).

        Overwrites the KV in pages 0..num_pages-1: call it before the first request.
        """
        if self._device.type == "cpu":
            keep_freed_memory()
        num_tokens = min(num_pages * self._config.page_size, self._config.max_tokens_per_request)
        pages = list(range(-(-num_tokens // self._config.page_size)))
        greedy, drawn = SamplingParams(temperature=0.0), SamplingParams(top_p=0.9, logprobs=1)
        for params, start, token_ids in ((greedy, 0, [0] * num_tokens), (drawn, num_tokens - 1, [0])):
            row = BatchRow(
                request_id="warmup",
                slot=0,
                start=start,
                token_ids=token_ids,
                first_new_page=0,
                new_pages=pages,
                num_drafts=0,
                samples=True,
                params=params,
                seed=0,
                num_prompt_tokens=num_tokens,
                history=[0] * num_tokens,
            )
            self.run(ScheduledBatch(step_id=0, rows=(row,)))

    def _forward(self, built: BuiltBatch) -> tuple[_Logits, Tensor | None]:
        """Run the model, and say where the logits of positions first..end-1 come from; and the hidden states of
        the pooled positions, where there are any and the model's head can be had apart.

        Where the logits all fit, they are made at once. Else the model's head is applied piece by piece; a
        model whose head cannot be had apart runs once for each piece, which writes the same KV again.
        """
        model, forward, num_logits = self._model, built.forward, built.num_logits
        has_pooled = len(forward.logit_indices) > num_logits
        if isinstance(model, HeadApart) and (has_pooled or num_logits > self._positions_at_once):
            head, hidden = model, model.hidden_states(forward)
            return lambda first, end: head.logits(hidden[first:end]), hidden[num_logits:]
        if has_pooled:
            forward = replace(forward, logit_indices=forward.logit_indices[:num_logits])
        if num_logits <= self._positions_at_once:
            captured = None if self._graphs is None or not _is_decode(built) else self._graphs.run(forward)
            logits = model.forward(forward) if captured is None else captured
            return lambda first, end: logits[first:end], None
        return lambda first, end: model.forward(
            replace(forward, logit_indices=forward.logit_indices[first:end])
        ), None

    def _with_masks(self, rows: Sequence[BatchRow]) -> tuple[Sequence[BatchRow], dict[int, RowResult]]:
        """The rows with their masks, and by index the results of those that are without."""
        deadline = time.monotonic() + self._config.mask_patience
        masked: list[BatchRow] = []
        instead: dict[int, RowResult] = {}
        for index, row in enumerate(rows):
            row, result = with_mask(row, max(0.0, deadline - time.monotonic()))
            masked.append(row)
            if result is not None:
                instead[index] = result
        return masked, instead

    def _sampled(self, rows: Sequence[BatchRow], built: BuiltBatch, logits: _Logits) -> list[RowResult]:
        results = [RowResult([])] * len(rows)
        first = 0
        for part in self._parts([(index, rows[index]) for index in built.sampling_rows]):
            end = first + sum(row.sampled_positions for _, row in part)
            sampled = self._sampler.sample(logits(first, end), [row for _, row in part])
            for (index, _), result in zip(part, sampled, strict=True):
                results[index] = result
            first = end
        return results

    def _parts(self, rows: Sequence[tuple[int, BatchRow]]) -> Iterator[list[tuple[int, BatchRow]]]:
        """The rows, as many together as have their logits made at once (one at least)."""
        part: list[tuple[int, BatchRow]] = []
        size = 0
        for index, row in rows:
            if part and size + row.sampled_positions > self._positions_at_once:
                yield part
                part, size = [], 0
            part.append((index, row))
            size += row.sampled_positions
        if part:
            yield part

    def _with_prompt_logprobs(
        self, rows: Sequence[BatchRow], built: BuiltBatch, logits: _Logits, results: list[RowResult]
    ) -> list[RowResult]:
        if not built.prompt_targets:
            return results
        ids: list[int] = []
        counts: list[int] = []
        for targets in built.prompt_targets:
            row = rows[targets.row]
            ids += row.history[targets.first : targets.last + 1] if targets.count else []
            counts += [row.params.prompt_logprobs or 0] * targets.count
        found = self._prompt_logprobs(built.num_sampled, ids, counts, logits)
        results = list(results)
        for targets in built.prompt_targets:
            entries = [next(found) for _ in range(targets.count)]
            complete = [entry for entry in entries if entry is not None]
            if len(complete) < len(entries):
                results[targets.row] = RowResult([], error=NOT_FINITE)
            elif results[targets.row].error is None:
                results[targets.row] = replace(results[targets.row], prompt_logprobs=complete)
        return results

    def _with_target_logprobs(
        self, rows: Sequence[BatchRow], built: BuiltBatch, logits: _Logits, results: list[RowResult]
    ) -> list[RowResult]:
        ids = [token_ids for row in rows for token_ids in row.targets.token_ids]
        if not ids:
            return results
        found = self._target_logprobs(built.first_target, ids, logits)
        results = list(results)
        for index, row in enumerate(rows):
            entries = [next(found) for _ in row.targets.token_ids]
            complete = [entry for entry in entries if entry is not None]
            if len(complete) < len(entries):
                results[index] = RowResult([], error=NOT_FINITE)
            elif entries and results[index].error is None:
                results[index] = replace(results[index], target_logprobs=complete)
        return results

    def _target_logprobs(
        self, offset: int, ids: Sequence[Sequence[int]], logits: _Logits
    ) -> Iterator[list[float] | None]:
        """As _prompt_logprobs, of several tokens each."""
        for first in range(0, len(ids), self._positions_at_once):
            chunk = ids[first : first + self._positions_at_once]
            part = logits(offset + first, offset + first + len(chunk))
            broken = not_finite_rows(part)
            if broken:
                part[broken] = 0.0
            for row, entry in enumerate(target_logprobs(part, chunk)):
                yield None if row in broken else entry

    def _prompt_logprobs(
        self, offset: int, ids: Sequence[int], counts: Sequence[int], logits: _Logits
    ) -> Iterator[TokenLogprobs | None]:
        """One for each of ``ids``, of the model's own distribution; None where its logits are not finite."""
        for first in range(0, len(ids), self._positions_at_once):
            chunk = slice(first, min(first + self._positions_at_once, len(ids)))
            part = logits(offset + chunk.start, offset + chunk.stop)
            broken = not_finite_rows(part)
            if broken:
                part[broken] = 0.0
            rows = range(chunk.stop - chunk.start)
            found = token_logprobs(part, rows, ids[chunk], counts[chunk], self._sampler.ops)
            yield from (None if row in broken else entry for row, entry in zip(rows, found, strict=True))


def _is_decode(built: BuiltBatch) -> bool:
    """One token a row, each sampled from."""
    num_tokens = built.forward.input_ids.shape[0]
    return built.num_sampled == built.num_logits == num_tokens == len(built.sampling_rows)
