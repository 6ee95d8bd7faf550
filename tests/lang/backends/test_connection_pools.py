"""Turns on connections, and the small pools that these are in."""

import asyncio

import httpx
import pytest

from ramet.lang.backends.connection_pools import POOL_SIZE, Pools, Turns


def test_no_two_have_one_place_and_all_wait_in_their_order() -> None:
    async def main() -> None:
        turns = Turns(3)
        here: set[int] = set()
        came: list[int] = []

        async def take(number: int) -> None:
            async with turns.taken() as place:
                assert place not in here
                here.add(place)
                came.append(number)
                await asyncio.sleep(0)
                here.remove(place)

        await asyncio.gather(*[take(number) for number in range(20)])
        assert came == list(range(20))
        # All are free again.
        async with turns.taken(), turns.taken(), turns.taken():
            pass

    asyncio.run(main())


def test_one_after_the_other_has_the_same_place() -> None:
    async def main() -> list[int]:
        turns = Turns(POOL_SIZE * 4)
        places = []
        for _ in range(3):
            async with turns.taken() as place:
                places.append(place)
        return places

    assert asyncio.run(main()) == [0, 0, 0]


@pytest.mark.parametrize("when", ["before its turn", "with its turn"])
def test_who_is_cancelled_while_it_waits_takes_no_place(when: str) -> None:
    async def main() -> None:
        turns = Turns(1)

        async def take() -> int:
            async with turns.taken() as place:
                return place

        async with turns.taken():
            leaving, staying = asyncio.create_task(take()), asyncio.create_task(take())
            await asyncio.sleep(0)
            if when == "before its turn":
                leaving.cancel()
                await asyncio.sleep(0)
        leaving.cancel()
        async with asyncio.timeout(10):
            assert await staying == 0
            with pytest.raises(asyncio.CancelledError):
                await leaving
            assert await take() == 0

    asyncio.run(main())


@pytest.mark.parametrize("size", [1, POOL_SIZE, POOL_SIZE * 3 + 1])
def test_pools_are_small_and_have_room_for_all(size: int) -> None:
    made: list[httpx.Limits] = []
    clients: list[httpx.AsyncClient] = []

    def make(limits: httpx.Limits) -> httpx.AsyncClient:
        made.append(limits)
        clients.append(httpx.AsyncClient(limits=limits, verify=False, trust_env=False))
        return clients[-1]

    async def main() -> None:
        pools = Pools(size, make)
        pools.client(0)
        assert len(made) == 1  # The others are made when they are needed.
        users: dict[httpx.AsyncClient, int] = {}
        for place in range(size):
            client = pools.client(place)
            users[client] = users.get(client, 0) + 1
        sizes = [limits.max_connections for limits in made]
        assert list(users.values()) == sizes == [limits.max_keepalive_connections for limits in made]
        assert sum(users.values()) == size
        assert max(users.values()) <= POOL_SIZE
        await pools.aclose()
        await pools.aclose()
        assert all(client.is_closed for client in clients)

    asyncio.run(main())
