"""KVPages: moves pages between the free list, the radix tree and the requests."""

from ramet.runtime.cache import KvState, RadixCache
from ramet.runtime.protocol import SessionPin
from ramet.runtime.scheduler.request import Request
from ramet.runtime.scheduler.session_pins import SessionPins


class KVPages:
    """The one place where requests get and lose pages.

    A page that is in the tree is never written again. So a request that computes tokens which the tree holds
    already (it had to: see ``Request.max_cached_tokens``) writes them into a page of its own, a duplicate, and
    changes to the tree's page after the step.
    """

    def __init__(self, cache: RadixCache, pins: SessionPins, *, share: bool) -> None:
        """``pins``: give way to requests that run. ``share`` False: the tree stays empty, all pages are the
        requests' own."""
        self._cache = cache
        self._pins = pins
        self._allocator = cache.allocator
        self._page_size = cache.allocator.page_size
        self._share = share

    @property
    def num_available(self) -> int:
        """Pages that are free or can be made free by eviction."""
        return self._allocator.num_free + self._cache.num_evictable_pages

    def prefix_length(self, request: Request) -> int:
        """Tokens of a waiting request that it would find in the tree now; not counted as a use of them."""
        if not self._share:
            return 0
        probe = self._cache.probe(request.history, request.cache_salt, request.max_cached_tokens, request.hint)
        request.hint = probe.node
        return probe.num_tokens

    def admission_cost(self, request: Request, num_tokens: int) -> int:
        """By how much ``num_available`` falls if a waiting request comes to hold pages for ``num_tokens``."""
        num_pages = -(-num_tokens // self._page_size)
        if not self._share:
            return num_pages
        probe = self._cache.probe(request.history, request.cache_salt, request.max_cached_tokens, request.hint)
        num_locked_tokens = probe.num_tokens - self._cache.num_unlocked_tokens(probe)
        return num_pages - num_locked_tokens // self._page_size

    def attach(self, request: Request) -> None:
        """A waiting request takes and locks the longest prefix that the tree has."""
        if self._share:
            match = self._cache.match(request.history, request.cache_salt, request.max_cached_tokens)
            self._cache.lock(match.node)
            request.node = match.node
            request.pages = match.pages
            request.num_tree_pages = len(match.pages)
            request.num_computed_tokens = match.num_tokens
        request.hint = None

    def extend(self, request: Request) -> None:
        """Take what others have put into the tree since: ``num_computed_tokens`` may rise."""
        node = request.node
        if node is None:
            return
        match = self._cache.match(request.history, limit=request.max_cached_tokens, start=node)
        if match.node is node:
            return
        self._cache.lock(match.node, held=node)
        first, end = request.num_tree_pages, request.num_tree_pages + len(match.pages)
        # Own pages with a beginning of what the tree now has whole.
        self._allocator.free(request.pages[first:end])
        request.pages[first:end] = match.pages
        request.num_tree_pages = end
        request.node = match.node
        request.num_sent_pages = min(request.num_sent_pages, first)
        request.num_computed_tokens = max(request.num_computed_tokens, match.num_tokens)

    def capacity(self, request: Request, reserve: int = 0) -> int:
        """For how many tokens it has pages or could get them, if ``reserve`` pages must stay available."""
        return (len(request.pages) + max(0, self.num_available - reserve)) * self._page_size

    def grow(self, request: Request, num_tokens: int) -> bool:
        """Give it pages for ``num_tokens`` in all, by eviction where needed; False: there are not enough."""
        num_missing = -(-num_tokens // self._page_size) - len(request.pages)
        if num_missing <= 0:
            return True
        shortage = num_missing - self._allocator.num_free
        if shortage > 0:
            if shortage > self._cache.num_evictable_pages:
                self._pins.give_way(num_missing)
            if shortage > self._cache.num_evictable_pages:
                return False
            self._cache.evict(shortage)
        pages = self._allocator.allocate(num_missing)
        assert pages is not None
        request.pages += pages
        return True

    def make_room(self, num_tokens: int) -> None:
        """Sessions give way until there are pages for so many tokens, or none is left."""
        self._pins.give_way(-(-num_tokens // self._page_size))

    def publish(self, request: Request, num_tokens: int) -> None:
        """The step that is being made up computes ``history[:num_tokens]``: its whole pages enter the tree now,
        so that later rows of the same step can read them."""
        node = request.node
        end = num_tokens // self._page_size
        if node is None or end <= request.num_tree_pages:
            return
        result = self._cache.insert(
            request.history,
            request.pages,
            num_tokens=end * self._page_size,
            tag=request.tag,
            start=node,
            state=KvState.PENDING,
        )
        self._cache.lock(result.node, held=node)
        request.duplicates = result.duplicates
        request.node = result.node
        request.num_tree_pages = end

    def settle(self, request: Request) -> None:
        """The step is over: own duplicates are given back for the tree's pages."""
        if request.duplicates:
            for index, page in request.duplicates.items():
                self._allocator.free((request.pages[index],))
                request.pages[index] = page
            request.num_sent_pages = min(request.num_sent_pages, *request.duplicates)
            request.duplicates = {}

    def release(self, request: Request, *, keep: bool, pin: SessionPin | None = None) -> None:
        """The request gives everything up. ``keep``: the whole pages that it computed go to the tree.
        ``pin``: and stay there for a session."""
        self.settle(request)
        node = end = request.node
        num_kept = request.num_tree_pages
        if keep and node is not None and request.num_computed_tokens // self._page_size > num_kept:
            num_kept = request.num_computed_tokens // self._page_size
            result = self._cache.insert(
                request.history,
                request.pages,
                num_tokens=num_kept * self._page_size,
                tag=request.tag,
                start=node,
                # Pages of known tokens are in the tree already; these were filled by sampled ones.
                state=KvState.VERIFIED,
            )
            self._allocator.free(request.pages[index] for index in result.duplicates)
            end = result.node
        self._allocator.free(request.pages[num_kept:])
        if end is not None and keep and pin is not None:
            self._pins.pin(pin, end)
        if node is not None:
            self._cache.unlock(node)
        request.pages = []
        request.num_tree_pages = 0
        request.node = None
        request.num_sent_pages = 0
        request.num_computed_tokens = 0

    def own_pages(self, request: Request) -> list[int]:
        """The pages that it holds outside the tree."""
        duplicates = [request.pages[index] for index in request.duplicates]
        return duplicates + request.pages[request.num_tree_pages :]
