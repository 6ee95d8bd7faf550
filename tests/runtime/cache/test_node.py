"""The record of one run of pages, and the order of what is known of its KV."""

import pytest

from ramet.runtime.cache import KvState, PageAllocator, RadixCache, RadixNode
from ramet.runtime.protocol import ProgramTag


def _node(parent: RadixNode | None = None) -> RadixNode:
    return RadixNode(
        parent=parent,
        token_ids=[1, 2, 3, 4],
        pages=[7, 8],
        end=10,
        salt="tenant",
        tag=ProgramTag(program_id="p"),
        state=KvState.WRITTEN,
    )


def test_a_new_node_is_unused_unlocked_and_has_no_children() -> None:
    root = _node()
    node = _node(root)
    assert node.parent is root
    assert (node.token_ids, node.pages, node.end) == ([1, 2, 3, 4], [7, 8], 10)
    assert (node.salt, node.tag, node.state) == ("tenant", ProgramTag(program_id="p"), KvState.WRITTEN)
    assert (node.lock_count, node.last_access, node.hit_count, node.priority) == (0, 0, 0, 0.0)
    assert (node.children, node.is_queued) == ({}, False)
    assert root.children == {}  # who makes a node hangs it up


def test_nodes_share_nothing() -> None:
    first, second = _node(), _node()
    first.children[1] = second
    assert second.children == {}


def test_nodes_are_told_apart_by_identity() -> None:
    first, second = _node(), _node()
    assert first != second
    assert len({first, second}) == 2


def test_a_node_has_no_other_fields() -> None:
    node = _node()
    assert not hasattr(node, "__dict__")
    assert set(RadixNode.__slots__) == {name for name in dir(node) if not name.startswith("_")}
    with pytest.raises(AttributeError):
        node.page = 3  # type: ignore[attr-defined]


def test_repr_shows_sizes_and_not_the_tokens() -> None:
    node = _node()
    node.children[5] = _node(node)
    node.lock_count = 2
    assert repr(node) == "RadixNode(end=10, tokens=4, children=1, locks=2)"


def test_states_only_get_better() -> None:
    assert KvState.PENDING < KvState.WRITTEN < KvState.VERIFIED
    cache = RadixCache(PageAllocator(4, 1))
    pages = cache.allocator.allocate(1)
    assert pages is not None
    node = cache.insert([5], pages, state=KvState.PENDING).node
    cache.mark_verified(node)
    cache.mark_written()
    assert node.state is KvState.VERIFIED


def test_a_node_that_left_the_tree_has_no_parent_and_one_that_was_cut_keeps_its_end() -> None:
    cache = RadixCache(PageAllocator(8, 2))
    pages = cache.allocator.allocate(3)
    assert pages is not None
    node = cache.insert([1, 2, 3, 4, 5, 6], pages).node
    cache.lock(node)
    upper = cache.match([1, 2, 9]).node
    assert (node.token_ids, node.pages, node.end) == ([3, 4, 5, 6], pages[1:], 6)
    assert node.parent is upper
    assert (upper.token_ids, upper.pages, upper.end, upper.lock_count) == ([1, 2], pages[:1], 2, 1)
    assert upper.children == {(3, 4): node}
    cache.unlock(node)
    cache.reset()
    assert [left.parent for left in (node, upper)] == [None, None]


def test_the_key_of_a_page_of_one_token_is_the_token() -> None:
    cache = RadixCache(PageAllocator(2, 1))
    pages = cache.allocator.allocate(2)
    assert pages is not None
    node = cache.insert([3, 4], pages).node
    assert node.parent is not None
    assert node.parent.children == {3: node}
