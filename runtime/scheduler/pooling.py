"""PooledStates: what becomes of a prompt's hidden states where a request wants its embedding."""

import numpy as np
import numpy.typing as npt

from ramet.runtime.protocol import Pooling

States = npt.NDArray[np.float32]
"""[num_positions, hidden_size]: what the model's output head reads, behind the last norm."""


class PooledStates:
    """The hidden states of a prompt's positions, added up one after the other as its chunks are computed.

    Each position is added once, in order, in float64: how the prompt was cut into chunks changes no bit.
    """

    def __init__(self, pooling: Pooling, num_prompt_tokens: int) -> None:
        """``pooling``: last, of the last position alone; or mean, of all."""
        self._first = num_prompt_tokens - 1 if pooling == "last" else 0
        self._end = num_prompt_tokens
        self.next = self._first
        """The first position whose state is still to come: what is before it may come from the cache."""
        self._sum: npt.NDArray[np.float64] | None = None

    def within(self, start: int, end: int) -> range:
        """The positions of a row that are wanted still."""
        return range(max(start, self.next), max(start, self.next, min(end, self._end)))

    def add(self, positions: range, states: States) -> None:
        """``states``: one for each of ``positions``, as ``within`` gave them."""
        if not positions:
            return
        total = np.zeros(states.shape[1]) if self._sum is None else self._sum
        for state in states:
            total = total + state
        self._sum = total
        self.next = positions.stop

    def embedding(self) -> list[float]:
        """Once all positions were added: their mean, rounded to float32."""
        assert self._sum is not None
        assert self.next == self._end
        mean: list[float] = (self._sum / (self._end - self._first)).astype(np.float32).tolist()
        return mean
