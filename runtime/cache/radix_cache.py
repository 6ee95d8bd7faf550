"""RadixCache: the radix tree over token ids whose nodes own KV pages (RadixAttention, arXiv 2312.07104)."""

from collections.abc import Iterable, Iterator

from ramet.runtime.cache.allocator import PageAccountingError, PageAllocator
from ramet.runtime.cache.eviction import EvictionPolicy, EvictionQueue, LruEviction
from ramet.runtime.cache.node import KvState, PageKey, RadixNode
from ramet.runtime.cache.outline import CacheOutline, outline_nodes
from ramet.runtime.cache.records import CacheStats, InsertResult, NodeView, PrefixMatch, PrefixProbe
from ramet.runtime.protocol import ProgramTag

_NO_TAG = ProgramTag()
_FIRST_COMPARISON = 64
"""Tokens of the first slice compared in a node; it doubles, so a mismatch costs what was matched before it."""


class RadixCache:
    """One radix tree for each ``cache_salt``; the keys are whole pages of token ids.

    Invariants (``check_integrity``): free + cached + held pages == total, each page with one owner; a node's
    children differ in their first page; a node that is locked has a locked path to its root. A page that
    entered the tree is never written again, save a PENDING one by the step that is to write it.

    Nothing here is recursive: a prompt may make a path of any length. Not thread-safe: one thread owns it.
    """

    def __init__(self, allocator: PageAllocator, eviction: EvictionPolicy | None = None) -> None:
        self._allocator = allocator
        self._page_size = allocator.page_size
        self._eviction: EvictionPolicy = LruEviction() if eviction is None else eviction
        self._queue = EvictionQueue()
        self._roots: dict[str, RadixNode] = {}
        self._idle_root: RadixNode | None = None
        self._pending: list[RadixNode] = []
        self._clock = 0
        self._num_nodes = 0
        self._num_cached_pages = 0
        self._num_locked_pages = 0
        self._num_lookups = 0
        self._num_hits = 0
        self._num_lookup_tokens = 0
        self._num_hit_tokens = 0
        self._num_inserted_pages = 0
        self._num_evicted_pages = 0

    @property
    def allocator(self) -> PageAllocator:
        return self._allocator

    @property
    def num_evictable_pages(self) -> int:
        """Pages that ``evict`` could free now. O(1)."""
        return self._num_cached_pages - self._num_locked_pages

    @property
    def stats(self) -> CacheStats:
        return CacheStats(
            num_lookups=self._num_lookups,
            num_hits=self._num_hits,
            num_lookup_tokens=self._num_lookup_tokens,
            num_hit_tokens=self._num_hit_tokens,
            num_inserted_pages=self._num_inserted_pages,
            num_evicted_pages=self._num_evicted_pages,
            num_nodes=self._num_nodes,
            num_cached_pages=self._num_cached_pages,
            num_locked_pages=self._num_locked_pages,
        )

    # -- Reading ---------------------------------------------------------------------------------------------

    def match(
        self,
        token_ids: list[int],
        salt: str = "",
        limit: int | None = None,
        start: RadixNode | None = None,
    ) -> PrefixMatch:
        """The longest prefix of ``token_ids`` in the tree, of at most ``limit`` tokens; a use of its path.

        Costs the length of the match, whatever the size of the tree; a node in which the match ends is cut
        there. ``start``: a locked node whose path spells the beginning of ``token_ids``; the search goes on
        below it, and ``pages`` are those after it.
        """
        if start is None:
            start = self._root(salt)
            self._num_lookups += 1
            self._num_lookup_tokens += len(token_ids)
        node, child, num_common = self._descend(token_ids, start, limit)
        if child is not None:
            node = self._split(child, num_common)
        if node is not start:
            self._touch(node, hits=1)
            if start.parent is None:
                self._num_hits += 1
                self._num_hit_tokens += node.end
        return PrefixMatch(node, node.end, _pages_between(start, node))

    def probe(
        self,
        token_ids: list[int],
        salt: str = "",
        limit: int | None = None,
        hint: RadixNode | None = None,
    ) -> PrefixProbe:
        """What ``match`` would find, but nothing changes and nothing counts as a use.

        ``hint``: the node of an earlier probe for the same token ids, which saves the way down to it; it may
        have left the tree since.
        """
        if hint is not None and hint.parent is not None and (limit is None or hint.end <= limit):
            start = hint
        else:
            root = self._roots.get(salt)
            if root is None:
                return PrefixProbe(None, 0, None)
            start = root
        node, child, num_common = self._descend(token_ids, start, limit)
        return PrefixProbe(None if node.parent is None else node, node.end + num_common, child)

    def num_unlocked_tokens(self, probe: PrefixProbe) -> int:
        """How many tokens of the match are evictable now: what locking it would take away from eviction."""
        num_tokens = 0
        node = probe.node
        if probe.cut is not None and probe.cut.lock_count == 0:
            num_tokens = probe.num_tokens - (0 if node is None else node.end)
        while node is not None and node.parent is not None and node.lock_count == 0:
            num_tokens += len(node.token_ids)
            node = node.parent
        return num_tokens

    def walk(self) -> Iterator[NodeView]:
        """Every node, parents before children, roots (depth 0) included. The tree must not change meanwhile."""
        stack = [(root, 0) for root in reversed(self._roots.values())]
        while stack:
            node, depth = stack.pop()
            yield NodeView(
                depth=depth,
                salt=node.salt,
                start=node.end - len(node.token_ids),
                token_ids=node.token_ids,
                pages=node.pages,
                num_children=len(node.children),
                lock_count=node.lock_count,
                hit_count=node.hit_count,
                last_access=node.last_access,
                tag=node.tag,
                state=node.state,
            )
            stack.extend((child, depth + 1) for child in reversed(node.children.values()))

    def outline(self, salt_prefix: str = "") -> CacheOutline:
        """What was used last of the trees whose salt begins so, in numbers: no tokens, no salts."""
        roots = [root for salt, root in self._roots.items() if salt.startswith(salt_prefix)]
        return CacheOutline(
            nodes=outline_nodes(roots, self._clock),
            num_nodes=self._num_nodes,
            num_tokens=self._num_cached_pages * self._page_size,
            num_locked_tokens=self._num_locked_pages * self._page_size,
            capacity=self._allocator.num_pages * self._page_size,
        )

    # -- Writing ---------------------------------------------------------------------------------------------

    def insert(
        self,
        token_ids: list[int],
        pages: list[int],
        *,
        num_tokens: int | None = None,
        salt: str = "",
        tag: ProgramTag = _NO_TAG,
        start: RadixNode | None = None,
        state: KvState = KvState.VERIFIED,
    ) -> InsertResult:
        """Put the first ``num_tokens`` of ``token_ids`` (default: all whole pages) into the tree.

        ``pages[i]`` holds the KV of tokens ``i * page_size ..``. Pages that the tree lacks become the tree's;
        for the others see ``InsertResult.duplicates``. ``start``: as in ``match``; pages before its end are
        not looked at. ``state`` is that of the new pages; PENDING ones need ``mark_written`` or
        ``discard_pending`` after the step.

        Raises:
            ValueError: ``num_tokens`` is not a multiple of the page size, or exceeds tokens or pages.
        """
        end = len(token_ids) // self._page_size * self._page_size if num_tokens is None else num_tokens
        if end % self._page_size or end > len(token_ids) or end > len(pages) * self._page_size:
            raise ValueError(
                f"cannot insert {end} tokens in pages of {self._page_size}: "
                f"{len(token_ids)} tokens and {len(pages)} pages are given"
            )
        if start is None:
            start = self._root(salt)
        node, child, num_common = self._descend(token_ids, start, end)
        if child is not None:
            node = self._split(child, num_common)
        first, had = start.end // self._page_size, node.end // self._page_size
        duplicates = {
            first + offset: page
            for offset, page in enumerate(_pages_between(start, node))
            if page != pages[first + offset]
        }
        if node is not start:
            self._touch(node, hits=0)
        if node.end < end:
            node = self._append(
                node, token_ids[node.end : end], pages[had : end // self._page_size], tag, state
            )
        return InsertResult(node, end // self._page_size - had, duplicates)

    def lock(self, node: RadixNode, held: RadixNode | None = None) -> None:
        """Keep ``node`` and its path in the tree until ``unlock``; locks count.

        ``held``: a node on that path which the caller has locked; that lock moves down to ``node``.
        """
        current: RadixNode | None = node
        while current is not None and current is not held:
            if current.lock_count == 0:
                self._num_locked_pages += len(current.pages)
            current.lock_count += 1
            current = current.parent
        if held is not None and current is None:
            raise PageAccountingError("the held node is not on the path of the node to lock")

    def unlock(self, node: RadixNode) -> None:
        """Undo one ``lock``. It is a use of the path: a request that ran long has just read it."""
        self._clock += 1
        current: RadixNode | None = node
        while current is not None:
            if current.lock_count == 0:
                raise PageAccountingError("a node is unlocked more often than it was locked")
            current.lock_count -= 1
            current.last_access = self._clock
            current.priority = self._eviction.priority(current)
            if current.lock_count == 0:
                self._num_locked_pages -= len(current.pages)
                self._settle(current)
            current = current.parent

    def evict(self, num_pages: int) -> int:
        """Free ``num_pages`` pages of unlocked leaves, or all that there are; returns how many were freed.

        Of the last leaf only as many pages as needed go, from its end.
        """
        num_freed = 0
        while num_freed < num_pages:
            leaf = self._queue.pop()
            if leaf is None:
                break
            self._eviction.evicted(leaf.priority)
            num_wanted = num_pages - num_freed
            if num_wanted < len(leaf.pages):
                self._trim(leaf, num_wanted)
                num_freed += num_wanted
            else:
                num_freed += len(leaf.pages)
                self._remove(leaf)
        self._num_evicted_pages += num_freed
        return num_freed

    def reset(self) -> int:
        """Forget everything that is not locked; returns the number of pages freed."""
        return self.evict(self.num_evictable_pages)

    # -- A step in flight -------------------------------------------------------------------------------------

    def mark_written(self) -> None:
        """The step succeeded: PENDING nodes are WRITTEN."""
        for node in self._pending:
            node.state = max(node.state, KvState.WRITTEN)
        self._pending.clear()

    def mark_verified(self, node: RadixNode) -> None:
        """A token was sampled from the KV of the path to ``node``. Costs the nodes not known to be good yet."""
        current: RadixNode | None = node
        while current is not None and current.state is not KvState.VERIFIED:
            current.state = KvState.VERIFIED
            current = current.parent

    def discard_pending(self) -> int:
        """The step failed: its PENDING nodes leave the tree, all of them unlocked by now.

        Returns the number of pages freed.
        """
        num_freed = 0
        for top in self._pending:
            if top.parent is None:
                continue
            for node in reversed(_subtree(top)):
                if node.lock_count:
                    raise PageAccountingError("a node whose KV was never written is still locked")
                num_freed += len(node.pages)
                self._remove(node)
        self._pending.clear()
        return num_freed

    def discard_unverified(self, node: RadixNode) -> int:
        """Drop what hangs below the last VERIFIED node on the path to ``node``, save what is locked.

        For a request whose logits were not finite: what no token was ever sampled from may be the cause, and
        what was computed from it is broken too. Returns the number of pages freed.
        """
        top: RadixNode | None = None
        current: RadixNode | None = node
        while current is not None and current.state is not KvState.VERIFIED:
            top = current
            current = current.parent
        if top is None:
            return 0
        num_freed = 0
        for below in reversed(_subtree(top)):
            if not below.lock_count and not below.children:
                num_freed += len(below.pages)
                self._remove(below)
        return num_freed

    # -- Checks ----------------------------------------------------------------------------------------------

    def check_integrity(
        self, held_pages: Iterable[int] = (), handles: Iterable[RadixNode] | None = None
    ) -> None:
        """``held_pages``: pages that requests own outside the tree; ``handles``: every lock, where known.

        Raises:
            PageAccountingError: an invariant of the class does not hold.
        """
        nodes = [node for root in self._roots.values() for node in _subtree(root)]
        inner = [node for node in nodes if node.parent is not None]
        cached = [page for node in inner for page in node.pages]
        self._allocator.check_integrity([*cached, *held_pages])
        locked = sum(len(node.pages) for node in inner if node.lock_count)
        if (len(inner), len(cached), locked) != (
            self._num_nodes,
            self._num_cached_pages,
            self._num_locked_pages,
        ):
            raise PageAccountingError("the tree's counters disagree with its nodes")
        for node in nodes:
            self._check_node(node)
        if handles is not None:
            _check_locks(nodes, list(handles))

    def _check_node(self, node: RadixNode) -> None:
        parent = node.parent
        if parent is not None:
            start = node.end - len(node.token_ids)
            if not node.pages or len(node.token_ids) != len(node.pages) * self._page_size:
                raise PageAccountingError(f"{node} has {len(node.pages)} pages")
            if parent.children.get(self._key(node.token_ids, 0)) is not node or parent.end != start:
                raise PageAccountingError(f"{node} is not where its parent looks for it")
            if parent.lock_count < node.lock_count:
                raise PageAccountingError(f"{node} is locked more often than its parent")
            if not node.lock_count and not node.children and not node.is_queued:
                raise PageAccountingError(f"{node} is an unlocked leaf that eviction cannot find")

    # -- Inside ----------------------------------------------------------------------------------------------

    def _key(self, token_ids: list[int], position: int) -> PageKey:
        if self._page_size == 1:
            return token_ids[position]
        return tuple(token_ids[position : position + self._page_size])

    def _root(self, salt: str) -> RadixNode:
        root = self._roots.get(salt)
        if root is None:
            if self._idle_root is not None:
                # A match that found nothing and was never locked leaves an empty root: at most one stays.
                self._settle(self._idle_root)
            root = RadixNode(
                parent=None, token_ids=[], pages=[], end=0, salt=salt, tag=_NO_TAG, state=KvState.VERIFIED
            )
            self._roots[salt] = root
            self._idle_root = root
        return root

    def _descend(
        self, token_ids: list[int], node: RadixNode, limit: int | None
    ) -> tuple[RadixNode, RadixNode | None, int]:
        """From ``node`` down: the deepest node that matches whole, and the child of it that matches in part
        with the length of that part (a multiple of the page size; None and 0 where there is no such child)."""
        page_size = self._page_size
        stop = len(token_ids) if limit is None else min(limit, len(token_ids))
        position = node.end
        while position + page_size <= stop:
            child = node.children.get(self._key(token_ids, position))
            if child is None:
                break
            num_common = _num_common(child.token_ids, token_ids, position, stop)
            if num_common < len(child.token_ids):
                return node, child, num_common // page_size * page_size
            node = child
            position = child.end
        return node, None, 0

    def _touch(self, node: RadixNode, hits: int) -> None:
        self._clock += 1
        current: RadixNode | None = node
        while current is not None:
            current.last_access = self._clock
            current.hit_count += hits
            current.priority = self._eviction.priority(current)
            current = current.parent

    def _append(
        self, parent: RadixNode, token_ids: list[int], pages: list[int], tag: ProgramTag, state: KvState
    ) -> RadixNode:
        node = RadixNode(
            parent=parent,
            token_ids=token_ids,
            pages=pages,
            end=parent.end + len(token_ids),
            salt=parent.salt,
            tag=tag,
            state=state,
        )
        parent.children[self._key(token_ids, 0)] = node
        self._clock += 1
        node.last_access = self._clock
        node.priority = self._eviction.priority(node)
        self._num_nodes += 1
        self._num_cached_pages += len(pages)
        self._num_inserted_pages += len(pages)
        if state is KvState.PENDING:
            self._pending.append(node)
        self._queue.push(node)
        return node

    def _split(self, node: RadixNode, num_tokens: int) -> RadixNode:
        """Cut the first ``num_tokens`` off ``node`` into a new parent of it, which is returned.

        ``node`` keeps its identity and its end, so the handles of those who locked it stay right.
        """
        parent = node.parent
        assert parent is not None
        num_pages = num_tokens // self._page_size
        head = RadixNode(
            parent=parent,
            token_ids=node.token_ids[:num_tokens],
            pages=node.pages[:num_pages],
            end=node.end - len(node.token_ids) + num_tokens,
            salt=node.salt,
            tag=node.tag,
            state=node.state,
        )
        del node.token_ids[:num_tokens]
        del node.pages[:num_pages]
        head.lock_count = node.lock_count
        head.last_access = node.last_access
        head.hit_count = node.hit_count
        head.priority = node.priority
        head.children[self._key(node.token_ids, 0)] = node
        parent.children[self._key(head.token_ids, 0)] = head
        node.parent = head
        self._num_nodes += 1
        if head.state is KvState.PENDING:
            self._pending.append(head)
        return head

    def _trim(self, leaf: RadixNode, num_pages: int) -> None:
        """Free the last ``num_pages`` (fewer than all) of an unlocked leaf."""
        num_tokens = num_pages * self._page_size
        self._allocator.free(leaf.pages[-num_pages:])
        del leaf.pages[-num_pages:]
        del leaf.token_ids[-num_tokens:]
        leaf.end -= num_tokens
        self._num_cached_pages -= num_pages
        self._queue.push(leaf)

    def _remove(self, node: RadixNode) -> None:
        """Take an unlocked node without children out of the tree and free its pages."""
        parent = node.parent
        assert parent is not None
        assert not node.children
        del parent.children[self._key(node.token_ids, 0)]
        node.parent = None
        self._queue.drop(node)
        self._allocator.free(node.pages)
        self._num_nodes -= 1
        self._num_cached_pages -= len(node.pages)
        self._settle(parent)

    def _settle(self, node: RadixNode) -> None:
        """``node`` lost a lock or a child: an unlocked leaf is queued for eviction, an empty root dropped."""
        if node.lock_count or node.children:
            return
        if node.parent is not None:
            self._queue.push(node)
        elif self._roots.get(node.salt) is node:
            del self._roots[node.salt]


def _num_common(node_ids: list[int], token_ids: list[int], position: int, stop: int) -> int:
    """Length of the common prefix of ``node_ids`` and ``token_ids[position:stop]``."""
    length = min(len(node_ids), stop - position)
    done, width = 0, _FIRST_COMPARISON
    while done < length:
        end = min(done + width, length)
        if node_ids[done:end] != token_ids[position + done : position + end]:
            low, high = done, end
            while high - low > 1:
                middle = (low + high) // 2
                if node_ids[low:middle] == token_ids[position + low : position + middle]:
                    low = middle
                else:
                    high = middle
            return low
        done = end
        width *= 2
    return length


def _pages_between(top: RadixNode, node: RadixNode) -> list[int]:
    """The pages from the end of ``top`` to the end of ``node``, which is below it or the same."""
    runs: list[list[int]] = []
    current: RadixNode | None = node
    while current is not None and current is not top:
        runs.append(current.pages)
        current = current.parent
    pages: list[int] = []
    for run in reversed(runs):
        pages += run
    return pages


def _subtree(root: RadixNode) -> list[RadixNode]:
    nodes = [root]
    for node in nodes:
        nodes.extend(node.children.values())
    return nodes


def _check_locks(nodes: list[RadixNode], handles: list[RadixNode]) -> None:
    counts = {id(node): 0 for node in nodes}
    for handle in handles:
        if id(handle) not in counts:
            raise PageAccountingError(f"the locked {handle} is not in the tree")
        counts[id(handle)] += 1
    for node in reversed(nodes):
        if node.parent is not None:
            counts[id(node.parent)] += counts[id(node)]
        if counts[id(node)] != node.lock_count:
            raise PageAccountingError(f"{node} should be locked {counts[id(node)]} times")
