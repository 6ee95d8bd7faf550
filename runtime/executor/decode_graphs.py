"""Decoding steps through captured graphs, by padded size; steps that do not fit run as they are."""

import logging
from collections import OrderedDict

import torch
from torch import Tensor

from ramet.runtime.attention.base import GraphableAttention, GraphSize, PlanOfStep
from ramet.runtime.executor.graphs import Graph, GraphCapture
from ramet.runtime.forward import ForwardBatch
from ramet.runtime.models.model import Model

MAX_GRAPHS = 64
"""Graphs that are kept, the ones used last: a graph of a large model takes some MiB."""

logger = logging.getLogger(__name__)


class DecodeGraphs:
    """A model's decoding steps, captured the first time that a size is needed.

    State: the inputs' buffers, which each step overwrites, and the graphs. Once a capture has failed nothing is
    captured any more, and ``why_not`` says why.
    """

    def __init__(
        self,
        model: Model,
        attention: GraphableAttention,
        capture: GraphCapture,
        device: torch.device,
        *,
        max_rows: int,
        max_pages: int,
        max_graphs: int = MAX_GRAPHS,
    ) -> None:
        """max_rows: of a step; max_pages: of a row."""
        self._model = model
        self._capture = capture
        self._buffers = attention.graph_buffers(max_rows, max_pages)
        self._input_ids = torch.zeros(2 * max_rows, dtype=torch.int64, device=device)
        self._positions = torch.zeros_like(self._input_ids)
        self._all = torch.arange(2 * max_rows, device=device)
        self._max_graphs = max_graphs
        self._graphs: OrderedDict[GraphSize, Graph] = OrderedDict()
        self._why_not: str | None = None

    @property
    def why_not(self) -> str | None:
        """Why nothing is captured; None: it is."""
        return self._why_not

    @property
    def num_graphs(self) -> int:
        return len(self._graphs)

    def run(self, batch: ForwardBatch) -> Tensor | None:
        """Logits of all tokens of a step of one token a row, [num_tokens, vocab_size], to be used before the
        next call. None: no graph computes this step.

        batch: of one token a row, whose logits are all wanted, in order.
        """
        num_tokens = batch.input_ids.shape[0]
        if self._why_not is not None or not isinstance(batch.attention, PlanOfStep):
            return None
        if num_tokens > self._input_ids.shape[0]:
            return None
        size = self._buffers.load(batch.attention.metadata)
        if size is None:
            return None
        self._input_ids[:num_tokens] = batch.input_ids
        self._positions[:num_tokens] = batch.positions
        graph = self._graphs.get(size)
        if graph is None:
            graph = self._captured(size)
            if graph is None:
                return None
        else:
            graph.replay()
        self._graphs.move_to_end(size)
        return graph.output[:num_tokens]

    def _captured(self, size: GraphSize) -> Graph | None:
        padded = ForwardBatch(
            input_ids=self._input_ids[: size.num_rows],
            positions=self._positions[: size.num_rows],
            attention=self._buffers.plan(size),
            logit_indices=self._all[: size.num_rows],
        )
        try:
            graph = self._capture.capture(lambda: self._model.forward(padded))
        except RuntimeError as error:
            self._why_not = str(error)
            self._graphs.clear()
            logger.warning("decoding steps run without graphs: capturing one failed: %s", error)
            return None
        self._graphs[size] = graph
        while len(self._graphs) > self._max_graphs:
            self._graphs.popitem(last=False)
        return graph
