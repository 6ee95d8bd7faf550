"""A model's launches, captured once and repeated: a step of decoding then costs one call of the driver."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor


class Graph(Protocol):
    """Work that was captured."""

    @property
    def output(self) -> Tensor:
        """Overwritten by each ``replay``."""
        ...

    def replay(self) -> None:
        """Give the work to the device again; it reads its inputs where they were."""
        ...


class GraphCapture(Protocol):
    """How work is captured on a device."""

    def capture(self, run: Callable[[], Tensor]) -> Graph:
        """Call ``run`` twice: once to make what is made once (compiled kernels), once to capture it.

        Its tensors' addresses have to stay, and nothing may wait for the device. Raises RuntimeError where that
        is not so, or the device has no graphs.
        """
        ...


class CudaGraph:
    """A CUDA graph and what it writes."""

    def __init__(self, graph: torch.cuda.CUDAGraph, output: Tensor) -> None:
        self._graph = graph
        self._output = output

    @property
    def output(self) -> Tensor:
        return self._output

    def replay(self) -> None:
        self._graph.replay()


class CudaGraphCapture:
    """CUDA graphs of one device. They share the memory of what lives within a step."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # An opaque handle of torch's.
        self._memory: Any = None

    def capture(self, run: Callable[[], Tensor]) -> CudaGraph:
        with torch.cuda.device(self._device):
            stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            outer = torch.cuda.current_stream()
            stream.wait_stream(outer)
            with torch.cuda.stream(stream):
                run()
            outer.wait_stream(stream)
            if self._memory is None:
                self._memory = torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._memory, stream=stream):
                output = run()
            # Capturing runs nothing.
            graph.replay()
        return CudaGraph(graph, output)
