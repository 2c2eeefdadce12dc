"""The one that kills the server is found, nobody else pays for it."""

from __future__ import annotations

import asyncio

import pytest

from osmosis.jobs.server.supervisor import CrashIsolation


class Server:
    """Dies when `poison` is on it; everybody on it then learns of it."""

    def __init__(self, quarantine: CrashIsolation, poison: set[int]) -> None:
        self.quarantine = quarantine
        self.poison = poison
        self.deaths = 0
        self.most = 0
        self._on: dict[int, asyncio.Future[bool]] = {}

    async def visit(self, who: int) -> bool:
        """Whether the visitor left alive."""
        done = self._on[who] = asyncio.get_running_loop().create_future()
        self.most = max(self.most, len(self._on))
        if who in self.poison:
            self.deaths += 1
            await self.quarantine.set_open(False)
            for other in self._on.values():
                if not other.done():
                    other.set_result(False)
            asyncio.get_running_loop().call_later(0.005, lambda: asyncio.ensure_future(self.quarantine.set_open(True)))
        else:
            asyncio.get_running_loop().call_later(0.003, lambda: done.done() or done.set_result(True))
        try:
            return await done
        finally:
            del self._on[who]


async def survive(server: Server, who: int) -> bool:
    suspicion = 0
    while True:
        async with server.quarantine.admit(suspicion):
            alive = await server.visit(who)
        if alive or server.quarantine.is_alone(suspicion):
            return alive
        suspicion += 1


@pytest.mark.parametrize(("concurrency", "poison"), [(1, {2}), (4, {3, 4}), (16, {0, 7}), (64, {40})])
async def test_only_the_culprits_fail(concurrency: int, poison: set[int]) -> None:
    quarantine = CrashIsolation(concurrency)
    server = Server(quarantine, poison)
    await quarantine.set_open(True)
    slots = asyncio.Semaphore(concurrency)

    async def attempt(who: int) -> bool:
        async with slots:
            return await survive(server, who)

    alive = await asyncio.gather(*(attempt(who) for who in range(80)))
    assert {who for who, lived in enumerate(alive) if not lived} == poison
    assert server.most > concurrency // 4
    assert server.deaths <= 4 * len(poison)


async def test_nobody_is_on_a_server_that_is_not_there() -> None:
    quarantine = CrashIsolation(4)
    entered = asyncio.Event()

    async def go() -> None:
        async with quarantine.admit(0):
            entered.set()

    waiting = asyncio.create_task(go())
    await asyncio.sleep(0)
    assert not entered.is_set()
    await quarantine.set_open(True)
    await asyncio.wait_for(waiting, 5)


async def test_one_who_gives_up_waiting_blocks_nobody() -> None:
    quarantine = CrashIsolation(4)
    waiting = asyncio.create_task(quarantine.admit(2).__aenter__())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await quarantine.set_open(True)
    async with quarantine.admit(0):
        pass
