"""SessionPins: prefixes that stay in the radix tree for conversations that go on."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ramet.runtime.cache import RadixCache, RadixNode
from ramet.runtime.protocol import SessionPin

PINNED_SHARE = 0.5
"""Of the pool, what all sessions together may pin: requests that run must find room beside them."""


@dataclass(frozen=True, slots=True)
class _Pinned:
    node: RadixNode
    expires: float


class SessionPins:
    """What eviction leaves alone while a session is open.

    A session pins one prefix, its latest. Pins give way, those unused for longest first, where all together
    exceed their share, and where a request that must go on finds no page otherwise: what was pinned is then
    cached like anything else.

    Invariant: each pin's node is in the tree and locked once by it. One thread owns it, and the cache with it.
    """

    def __init__(self, cache: RadixCache, clock: Callable[[], float]) -> None:
        self._cache = cache
        self._clock = clock
        allocator = cache.allocator
        self._max_tokens = int(allocator.num_pages * PINNED_SHARE) * allocator.page_size
        self._pins: OrderedDict[str, _Pinned] = OrderedDict()
        """The one unused for longest first."""
        self.num_dropped = 0
        """Pins that gave way."""

    @property
    def num_sessions(self) -> int:
        return len(self._pins)

    @property
    def num_tokens(self) -> int:
        """Those that sessions share count once. Costs the nodes on their paths."""
        seen: set[int] = set()
        num_tokens = 0
        for pinned in self._pins.values():
            node: RadixNode | None = pinned.node
            while node is not None and id(node) not in seen:
                seen.add(id(node))
                num_tokens += len(node.token_ids)
                node = node.parent
        return num_tokens

    def nodes(self) -> Iterator[RadixNode]:
        """One for each lock."""
        return (pinned.node for pinned in self._pins.values())

    def pin(self, wanted: SessionPin, node: RadixNode) -> None:
        """The path to ``node``, as far as the session's bound goes, replaces what it pinned before."""
        self.expire()
        most = min(wanted.max_tokens, self._max_tokens)
        top: RadixNode = node
        while top.end > most and top.parent is not None:
            top = top.parent
        if top.parent is None:
            self.release(wanted.session)
            return
        # Before the old one is given up: they share a path.
        self._cache.lock(top)
        self.release(wanted.session)
        self._pins[wanted.session] = _Pinned(top, self._clock() + wanted.seconds)
        while self.num_tokens > self._max_tokens:
            self._drop_oldest()

    def release(self, session: str) -> int:
        """The session's prefix is cached like anything else; how many tokens it has. 0: there is none."""
        pinned = self._pins.pop(session, None)
        if pinned is None:
            return 0
        self._cache.unlock(pinned.node)
        return pinned.node.end

    def expire(self) -> None:
        """Gives up what was not used for as long as its session may rest."""
        now = self._clock()
        for session in [key for key, pinned in self._pins.items() if pinned.expires <= now]:
            self.release(session)

    def give_way(self, num_pages: int) -> None:
        """Gives up pins until so many pages are free or evictable, or there are no pins."""
        self.expire()
        while self._pins and self._cache.allocator.num_free + self._cache.num_evictable_pages < num_pages:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        self.release(next(iter(self._pins)))
        self.num_dropped += 1
