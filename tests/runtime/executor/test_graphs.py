"""CUDA graphs where there is a GPU; what is made of them is tested with a recorded one (test_decode_graphs)."""

import pytest
import torch

from ramet.runtime.executor.graphs import CudaGraphCapture


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_graph_reads_its_inputs_again() -> None:
    x = torch.ones(4, device="cuda")
    graph = CudaGraphCapture(x.device).capture(lambda: x * 2)
    assert graph.output.tolist() == [2.0] * 4
    x.fill_(3)
    graph.replay()
    assert graph.output.tolist() == [6.0] * 4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_waiting_for_the_device_is_refused() -> None:
    x = torch.ones(4, device="cuda")
    with pytest.raises(RuntimeError):
        CudaGraphCapture(x.device).capture(lambda: x * float(x[0]))
