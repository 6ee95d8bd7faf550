"""PageAllocator: who may write which page of the KV pool."""

from collections.abc import Iterable


class PageAccountingError(RuntimeError):
    """A page was freed twice, lost or held by two owners: a defect of the runtime, never of a request."""


class PageAllocator:
    """A free list over the pages ``0 .. num_pages - 1``, each of ``page_size`` token slots.

    Invariant: every page is either on the free list, once, or handed out; ``num_free`` counts the former.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        if num_pages < 1 or page_size < 1:
            raise ValueError(f"num_pages is {num_pages} and page_size {page_size}; both must be at least 1")
        self._num_pages = num_pages
        self._page_size = page_size
        # A stack: the pages that were freed last are the ones whose memory is still warm.
        self._free = list(range(num_pages - 1, -1, -1))
        self._is_free = bytearray(b"\x01") * num_pages

    @property
    def num_pages(self) -> int:
        return self._num_pages

    @property
    def page_size(self) -> int:
        """Token slots of a page."""
        return self._page_size

    @property
    def num_free(self) -> int:
        """Pages on the free list."""
        return len(self._free)

    def allocate(self, num_pages: int) -> list[int] | None:
        """Hand out ``num_pages`` pages, or None (and none of them) where fewer are free."""
        if num_pages < 0:
            raise ValueError(f"num_pages is {num_pages}; it must be at least 0")
        if num_pages > len(self._free):
            return None
        if num_pages == 0:
            return []
        pages = self._free[-num_pages:]
        del self._free[-num_pages:]
        pages.reverse()
        for page in pages:
            self._is_free[page] = 0
        return pages

    def free(self, pages: Iterable[int]) -> None:
        """Take pages back.

        Raises:
            PageAccountingError: a page is unknown or is free already; pages before it have been taken back.
        """
        for page in pages:
            if not 0 <= page < self._num_pages:
                raise PageAccountingError(f"page {page} is not one of the pool's {self._num_pages} pages")
            if self._is_free[page]:
                raise PageAccountingError(f"page {page} is freed twice")
            self._is_free[page] = 1
            self._free.append(page)

    def check_integrity(self, held: Iterable[int]) -> None:
        """``held`` names every page that is handed out: free + held == total, each page once.

        Raises:
            PageAccountingError: it is not so.
        """
        held_pages = list(held)
        if len(set(held_pages)) != len(held_pages):
            raise PageAccountingError("a page has two owners")
        for page in held_pages:
            if not 0 <= page < self._num_pages or self._is_free[page]:
                raise PageAccountingError(f"page {page} is in use but not handed out")
        if len(self._free) != sum(self._is_free) or len(set(self._free)) != len(self._free):
            raise PageAccountingError("the free list disagrees with the pages' marks")
        if len(self._free) + len(held_pages) != self._num_pages:
            raise PageAccountingError(
                f"{len(self._free)} free + {len(held_pages)} held pages are not the pool's {self._num_pages}"
            )
