"""What is shown of the tree: as many nodes as fit, connected, and numbers only."""

from random import Random

import msgspec
import pytest

from ramet.runtime.cache import CacheOutline, PageAllocator, RadixCache
from ramet.runtime.cache.outline import MAX_CHILDREN, MAX_NODES


def cache_of(prompts: list[tuple[str, list[int]]], num_pages: int = 20_000) -> RadixCache:
    cache = RadixCache(PageAllocator(num_pages, 1))
    for salt, token_ids in prompts:
        pages = cache.allocator.allocate(len(token_ids))
        assert pages is not None
        cache.match(token_ids, salt)
        cache.allocator.free(pages[index] for index in cache.insert(token_ids, pages, salt=salt).duplicates)
    return cache


def test_an_empty_cache_has_no_nodes() -> None:
    outline = cache_of([]).outline()
    assert outline == CacheOutline(capacity=20_000)


def test_a_shared_prefix_is_one_node_with_two_below() -> None:
    cache = cache_of([("", [1, 2, 3, 4, 5]), ("", [1, 2, 3, 6])])
    match = cache.match([1, 2, 3, 6])
    cache.lock(match.node)
    outline = cache.outline()
    root, *others = outline.nodes
    assert (root.parent, root.num_tokens, root.num_children) == (-1, 0, 1)
    assert sorted((one.parent, one.num_tokens, one.lock_count) for one in others) == [
        (0, 3, 1),
        (1, 1, 1),
        (1, 2, 0),
    ]
    assert max(one.hit_count for one in others) == 2
    assert (outline.num_nodes, outline.num_tokens, outline.num_locked_tokens) == (3, 6, 4)
    cache.unlock(match.node)


def test_trees_of_other_salts_are_counted_and_not_shown() -> None:
    cache = cache_of([("mine:", [1, 2]), ("mine:x", [1, 2, 3]), ("other:", [1, 2, 3, 4])])
    outline = cache.outline("mine:")
    assert sorted(one.num_tokens for one in outline.nodes) == [0, 0, 2, 3]
    assert outline.num_tokens == 9
    assert len(cache.outline().nodes) == 6
    assert cache.outline("nobody").nodes == []
    # Nothing of what was said, or by whom, is in it.
    assert b"mine" not in msgspec.json.encode(outline)


@pytest.mark.parametrize("page_size", [1, 4])
def test_of_a_large_tree_the_part_used_last_is_shown(page_size: int) -> None:
    random = Random(5)
    cache = RadixCache(PageAllocator(200_000, page_size))
    for _ in range(3000):
        token_ids = [random.randrange(3) for _ in range(random.randrange(page_size, 40))]
        num_pages = len(token_ids) // page_size
        pages = cache.allocator.allocate(num_pages)
        assert pages is not None
        cache.allocator.free(pages[index] for index in cache.insert(token_ids, pages).duplicates)
    outline = cache.outline()
    assert outline.num_nodes > len(outline.nodes) == MAX_NODES
    # Nothing that was used more than half a tree ago has pushed out what is newer.
    assert max(one.age for one in outline.nodes) < 1500
    for index, node in enumerate(outline.nodes):
        assert -1 <= node.parent < index
        assert node.num_tokens % page_size == 0
    below = [sum(one.parent == index for one in outline.nodes) for index in range(len(outline.nodes))]
    assert all(shown <= node.num_children for shown, node in zip(below, outline.nodes, strict=True))


def test_of_a_wide_node_the_newest_children_are_looked_at() -> None:
    cache = cache_of([("", [index, index]) for index in range(MAX_CHILDREN * 3)])
    outline = cache.outline()
    assert outline.nodes[0].num_children == MAX_CHILDREN * 3
    assert len(outline.nodes) == MAX_CHILDREN + 1
    assert max(one.age for one in outline.nodes) < MAX_CHILDREN * 3
