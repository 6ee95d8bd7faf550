"""PageAllocator: pages are handed out once and come back once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.cache import PageAccountingError, PageAllocator


def test_hands_out_each_page_once() -> None:
    allocator = PageAllocator(5, page_size=4)
    first, second = allocator.allocate(2), allocator.allocate(3)
    assert first is not None
    assert second is not None
    assert sorted(first + second) == [0, 1, 2, 3, 4]
    assert allocator.num_free == 0


def test_gives_all_or_nothing() -> None:
    allocator = PageAllocator(3, page_size=1)
    assert allocator.allocate(4) is None
    assert allocator.num_free == 3
    assert allocator.allocate(0) == []


def test_refuses_a_page_that_is_free_already() -> None:
    allocator = PageAllocator(3, page_size=1)
    pages = allocator.allocate(1)
    assert pages is not None
    allocator.free(pages)
    with pytest.raises(PageAccountingError, match="freed twice"):
        allocator.free(pages)


@pytest.mark.parametrize("page", [-1, 3])
def test_refuses_an_unknown_page(page: int) -> None:
    with pytest.raises(PageAccountingError, match="not one of the pool's 3 pages"):
        PageAllocator(3, page_size=1).free([page])


@pytest.mark.parametrize(("num_pages", "page_size"), [(0, 1), (1, 0), (-1, 1)])
def test_refuses_an_empty_pool(num_pages: int, page_size: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        PageAllocator(num_pages, page_size)


def test_refuses_a_negative_count() -> None:
    with pytest.raises(ValueError, match="-1"):
        PageAllocator(3, 1).allocate(-1)


def test_integrity_names_what_is_wrong() -> None:
    allocator = PageAllocator(3, page_size=1)
    pages = allocator.allocate(2)
    assert pages is not None
    allocator.check_integrity(pages)
    with pytest.raises(PageAccountingError, match="are not the pool's 3"):
        allocator.check_integrity(pages[:1])
    with pytest.raises(PageAccountingError, match="two owners"):
        allocator.check_integrity([*pages, pages[0]])
    with pytest.raises(PageAccountingError, match="not handed out"):
        allocator.check_integrity([pages[0], 2])


@given(st.lists(st.one_of(st.integers(0, 6), st.just("free")), max_size=60))
def test_free_and_held_are_the_whole_pool(operations: list[int | str]) -> None:
    allocator = PageAllocator(16, page_size=2)
    held: list[list[int]] = []
    for operation in operations:
        if isinstance(operation, int):
            pages = allocator.allocate(operation)
            assert (pages is None) == (operation > 16 - sum(map(len, held)))
            held.append(pages or [])
        elif held:
            allocator.free(held.pop(0))
        allocator.check_integrity(page for pages in held for page in pages)
