"""Decoding through captured graphs against the same steps without them."""

import logging
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from ramet.runtime.attention import AttentionMetadata
from ramet.runtime.attention.gpu_backend import GpuAttentionBackend
from ramet.runtime.executor.decode_graphs import DecodeGraphs
from ramet.runtime.executor.model_runner import ModelRunner, RunnerConfig
from ramet.runtime.forward import AttentionSpec, DeviceKVPool, ForwardBatch
from ramet.runtime.models.config import ModelConfig
from ramet.runtime.protocol import SamplingParams
from tests.runtime.executor.fakes import DrivenRequest, step
from tests.runtime.executor.graph_fakes import RecordingCapture

CPU = torch.device("cpu")
PAGE_SIZE, HEADS, HEAD_DIM, VOCAB, WINDOW = 4, 2, 16, 61, 5
CONFIG = ModelConfig(
    architecture="X",
    vocab_size=VOCAB,
    hidden_size=HEADS * HEAD_DIM,
    intermediate_size=8,
    num_layers=2,
    num_heads=HEADS,
    num_kv_heads=1,
    head_dim=HEAD_DIM,
    max_positions=400,
)


class TwoLayers:
    """A Model of two attention layers, the second with a window; every token by itself but for attention."""

    def __init__(self, waits: bool = False) -> None:
        generator = torch.Generator().manual_seed(0)
        hidden, joint = CONFIG.hidden_size, (HEADS + 2) * HEAD_DIM
        self._tokens = torch.randn(VOCAB, hidden, generator=generator)
        self._positions = torch.randn(400, hidden, generator=generator) * 0.3
        self._joint = torch.randn(2, joint, hidden, generator=generator) * hidden**-0.5
        self._waits = waits
        self.num_calls = 0

    @property
    def config(self) -> ModelConfig:
        return CONFIG

    def forward(self, batch: ForwardBatch) -> Tensor:
        self.num_calls += 1
        x = self._tokens.index_select(0, batch.input_ids) + self._positions.index_select(0, batch.positions)
        if self._waits:
            x = x * float(x.abs().max() > 0)
        for layer, window in enumerate((None, WINDOW)):
            # Products of one row at a time would have other bits with other paddings.
            heads = (x[:, None, :] * self._joint[layer]).sum(-1).view(-1, HEADS + 2, HEAD_DIM)
            q, k, v = heads.split_with_sizes([HEADS, 1, 1], 1)
            x = x + batch.attention(q, k, v, AttentionSpec(layer, 0.25, window)).reshape(x.shape)
        return (x.index_select(0, batch.logit_indices)[:, None, :] * self._tokens).sum(-1)


def runner(
    model: TwoLayers, capture: RecordingCapture | None, max_graphs: int = 64
) -> tuple[ModelRunner, DecodeGraphs | None]:
    pool = DeviceKVPool(
        num_layers=2, num_slots=800, num_kv_heads=1, head_dim=HEAD_DIM, dtype=torch.float32, device=CPU
    )
    attention = GpuAttentionBackend(
        pool,
        num_heads=HEADS,
        num_kv_heads=1,
        head_dim=HEAD_DIM,
        page_size=PAGE_SIZE,
        dtype=torch.float32,
        device=CPU,
    )
    graphs = None
    if capture is not None:
        graphs = DecodeGraphs(model, attention, capture, CPU, max_rows=4, max_pages=100, max_graphs=max_graphs)
    config = RunnerConfig(max_running_requests=4, max_tokens_per_request=400, page_size=PAGE_SIZE)
    return ModelRunner(model, attention, config, CPU, graphs=graphs), graphs


def requests(lengths: Sequence[int]) -> list[DrivenRequest]:
    """With a first page in common."""
    rng = np.random.default_rng(0)
    shared = rng.integers(0, VOCAB, 4).tolist()
    return [
        DrivenRequest(
            request_id=str(number),
            history=shared + rng.integers(0, VOCAB, length - 4).tolist(),
            params=SamplingParams(temperature=0.5 * number, top_k=7),
            slot=number,
            pages=[0, *range(1 + 40 * number, 1 + 40 * (number + 1))],
            seed=number,
        )
        for number, length in enumerate(lengths)
    ]


def decoded(
    lengths: Sequence[int], capture: RecordingCapture | None, model: TwoLayers, max_graphs: int = 64
) -> tuple[list[list[int]], DecodeGraphs | None]:
    running, graphs = runner(model, capture, max_graphs)
    rows = requests(lengths)
    for row in rows:
        step(running, PAGE_SIZE, [row])
    for count in (3, 1, 2, 3, 2):
        step(running, PAGE_SIZE, rows[:count])
    return [row.output for row in rows], graphs


def test_tokens_are_those_of_steps_without_graphs(caplog: pytest.LogCaptureFixture) -> None:
    capture, model, plain = RecordingCapture(), TwoLayers(), TwoLayers()
    lengths = (6, 9, 5)
    found, graphs = decoded(lengths, capture, model)
    expected, _ = decoded(lengths, None, plain)
    assert found == expected
    assert graphs is not None
    assert graphs.why_not is None
    # Rows of 1, 2 and, padded, 4: each captured once, and two steps of them come again.
    assert graphs.num_graphs == len(capture.graphs) == 3
    assert sum(graph.num_replays for graph in capture.graphs) == 2
    prefills = len(lengths)
    assert plain.num_calls == prefills + 5
    assert model.num_calls == prefills + 2 * 3
    assert not caplog.records


def test_graphs_used_least_lately_go_first() -> None:
    capture = RecordingCapture()
    found, graphs = decoded((6, 9, 5), capture, TwoLayers(), max_graphs=1)
    assert found == decoded((6, 9, 5), None, TwoLayers())[0]
    assert graphs is not None
    assert graphs.num_graphs == 1
    assert len(capture.graphs) == 5


@pytest.mark.parametrize("waits", [True, False])
def test_what_cannot_be_captured_runs_as_it_is(waits: bool, caplog: pytest.LogCaptureFixture) -> None:
    capture = RecordingCapture() if waits else RecordingCapture("no graphs here")
    with caplog.at_level(logging.WARNING):
        found, graphs = decoded((6, 9, 5), capture, TwoLayers(waits))
    assert found == decoded((6, 9, 5), None, TwoLayers(waits))[0]
    assert graphs is not None
    assert graphs.num_graphs == 0
    why = "not permitted when stream is capturing" if waits else "no graphs here"
    assert why in str(graphs.why_not)
    (record,) = caplog.records
    assert why in record.getMessage()


def test_drafts_and_chunks_go_without() -> None:
    capture = RecordingCapture()
    running, _ = runner(TwoLayers(), capture)
    (row,) = requests([9])
    step(running, PAGE_SIZE, [row], max_tokens=8)
    # One token, which is not sampled from behind: the prompt's last comes next.
    step(running, PAGE_SIZE, [row], max_tokens=1)
    assert len(capture.graphs) == 1
    assert len(row.output) == 1


def test_a_plan_that_tells_nothing_of_its_step_is_not_captured() -> None:
    _, graphs = runner(TwoLayers(), RecordingCapture())
    assert graphs is not None
    ids = torch.zeros(1, dtype=torch.int64)
    assert graphs.run(ForwardBatch(ids, ids, lambda q, k, v, spec: q, ids)) is None
    many = torch.zeros(9, dtype=torch.int64)
    metadata = AttentionMetadata([1] * 9, [1] * 9, np.zeros((9, 1), np.int32))

    class Plan:
        def __init__(self) -> None:
            self.metadata = metadata

        def __call__(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
            return q

    assert graphs.run(ForwardBatch(many, many, Plan(), many)) is None
