"""Backends that hold connections are closed in every way that there is."""

import asyncio

import pytest

from ramet.lang.backends.connected import ConnectedBackend


class Counting(ConnectedBackend):
    def __init__(self) -> None:
        self.closed = 0

    async def aclose(self) -> None:
        await asyncio.sleep(0)
        self.closed += 1


def test_it_is_closed_at_the_end_of_a_with_also_after_an_error() -> None:
    backend = Counting()
    with backend as entered:
        assert entered is backend
        assert backend.closed == 0
    assert backend.closed == 1
    with pytest.raises(ValueError, match="boom"), backend:
        raise ValueError("boom")
    assert backend.closed == 2


def test_synchronous_code_closes_it() -> None:
    backend = Counting()
    backend.close()
    assert backend.closed == 1
