"""ByteCache: least recently used goes first, bounded by bytes and not by entries."""

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class ByteCache(Generic[K, V]):
    """Not thread-safe. Invariant: ``num_bytes`` is the sum of the entries' sizes and at most ``max_bytes``."""

    def __init__(self, max_bytes: int) -> None:
        if max_bytes < 0:
            raise ValueError(f"max_bytes is {max_bytes}; it must be at least 0")
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """The value, which is now the most recently used; None: there is none."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Keep ``value``, which takes ``size`` bytes. One that is larger than the whole cache is not kept."""
        self.discard(key)
        if size > self.max_bytes:
            return
        self._entries[key] = (value, size)
        self.num_bytes += size
        while self.num_bytes > self.max_bytes:
            _, (_, freed) = self._entries.popitem(last=False)
            self.num_bytes -= freed

    def discard(self, key: K) -> None:
        """Forget the key, if it is there."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.num_bytes -= entry[1]
