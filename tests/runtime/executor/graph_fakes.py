"""A capture without a GPU: what was launched is written down, and replaying runs that and nothing else."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from ramet.kernels.gpu.launch import Launch

_SYNCHRONISING = {
    torch.ops.aten.item.default,
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
}


class RecordedGraph:
    """torch's operators and our kernels, in order, over the tensors that they had."""

    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []
        self.output = torch.empty(0)
        self.num_replays = 0

    def replay(self) -> None:
        self.num_replays += 1
        for do in self.work:
            do()


class RecordingCapture:
    """A GraphCapture. Like a device's it refuses what waits for results, and replays read memory."""

    def __init__(self, why_not: str | None = None) -> None:
        self.graphs: list[RecordedGraph] = []
        self._why_not = why_not

    def capture(self, run: Callable[[], Tensor]) -> RecordedGraph:
        run()
        if self._why_not is not None:
            raise RuntimeError(self._why_not)
        graph, launch = RecordedGraph(), Launch.run

        def recorded(self: Launch) -> None:
            graph.work.append(lambda: launch(self))
            with torch.utils._python_dispatch._disable_current_modes():
                launch(self)

        Launch.run = recorded  # type: ignore[method-assign]
        try:
            with _Recorder(graph):
                graph.output = run()
        finally:
            Launch.run = launch  # type: ignore[method-assign]
        self.graphs.append(graph)
        return graph


class _Recorder(TorchDispatchMode):
    def __init__(self, graph: RecordedGraph) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._graph = graph

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _SYNCHRONISING:
            raise RuntimeError("operation not permitted when stream is capturing")
        kwargs = kwargs or {}
        out = func(*args, **kwargs)

        def again() -> None:
            found = func(*args, **kwargs)
            for old, new in zip(tree_flatten(out)[0], tree_flatten(found)[0], strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)

        self._graph.work.append(again)
        return out
