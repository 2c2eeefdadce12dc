"""How many connections a wire opens, and that calls in line get one whatever happens to the others."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from osmosis.llm.connections import AT_ONCE, Connections
from osmosis.llm.wire import PlainWire, Pool
from osmosis.testing.waiting import until

MANY = 2 * AT_ONCE


class Endpoint:
    """Answers while `open` is set; `hang_up` closes the connection after each answer."""

    def __init__(self, hang_up: bool = False) -> None:
        self.hang_up = hang_up
        self.open = asyncio.Event()
        self.connections = 0
        self.asked = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(4)
                self.asked += 1
                await self.open.wait()
                last = b"Connection: close\r\n" if self.hang_up else b""
                writer.write(b"HTTP/1.1 200 OK\r\n%bContent-Length: 2\r\n\r\nok" % last)
                if self.hang_up:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def work() -> None:
    """Keeps the event loop from its timers for longer than a loop with time to spare would."""
    end = time.perf_counter() + 0.003
    while time.perf_counter() < end:
        pass


@asynccontextmanager
async def running(hang_up: bool = False) -> AsyncIterator[tuple[Endpoint, PlainWire]]:
    endpoint = Endpoint(hang_up)
    listening = await asyncio.start_server(endpoint.serve, "127.0.0.1", 0, backlog=1024)
    wire = PlainWire(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1", {}, timeout_s=30.0)
    try:
        yield endpoint, wire
    finally:
        endpoint.open.set()
        await wire.close()
        listening.close()


async def test_an_endpoint_that_takes_its_time_gets_a_connection_for_each_call() -> None:
    async with running() as (endpoint, wire):
        calls = [asyncio.create_task(wire.post(b"body")) for _ in range(MANY)]
        await until(lambda: endpoint.asked == MANY)
        assert endpoint.connections == MANY
        endpoint.open.set()
        assert {reply.status for reply in await asyncio.gather(*calls)} == {200}


async def test_while_this_process_is_busy_connections_are_shared() -> None:
    async with running() as (endpoint, wire):
        endpoint.open.set()

        async def ask() -> int:
            status = (await wire.post(b"body")).status
            work()
            return status

        assert set(await asyncio.gather(*(ask() for _ in range(MANY)))) == {200}
        assert endpoint.asked == MANY
        assert endpoint.connections < MANY


async def test_calls_in_line_outlive_those_that_are_given_up() -> None:
    async with running() as (endpoint, wire):
        calls = [asyncio.create_task(wire.post(b"body")) for _ in range(MANY)]
        await until(lambda: endpoint.asked >= AT_ONCE)
        for call in calls[::2]:
            call.cancel()
        endpoint.open.set()
        kept = await asyncio.gather(*calls[1::2])
        assert {reply.status for reply in kept} == {200}
        again = await asyncio.gather(*(wire.post(b"body") for _ in range(MANY)))
        assert {reply.status for reply in again} == {200}


async def test_an_endpoint_that_hangs_up_after_each_answer_keeps_nobody_waiting() -> None:
    async with running(hang_up=True) as (endpoint, wire):
        endpoint.open.set()
        replies = await asyncio.gather(*(wire.post(b"body") for _ in range(MANY)))
        assert {reply.status for reply in replies} == {200}
        assert endpoint.connections == MANY


async def test_nobody_waits_for_an_endpoint_that_is_not_there() -> None:
    async with running() as (_, wire):
        pass
    found = await asyncio.gather(*(wire.post(b"body") for _ in range(MANY)), return_exceptions=True)
    assert all(isinstance(error, OSError) for error in found)
    with pytest.raises(OSError):
        await wire.post(b"body")


async def test_wires_to_urls_of_one_server_share_a_pool() -> None:
    async with running() as (endpoint, wire):
        endpoint.open.set()
        base = f"http://127.0.0.1:{wire._connections._port}"
        pool = Pool()
        for number in range(5):
            one = PlainWire(f"{base}/rollouts/{number}", {}, timeout_s=30.0, pool=pool)
            assert (await one.post(b"body")).body == b"ok"
            await one.close()
        assert (endpoint.connections, endpoint.asked) == (1, 5)
        await pool.close()
        assert (await PlainWire(f"{base}/x", {}, timeout_s=30.0, pool=pool).post(b"body")).body == b"ok"
        await pool.close()


async def test_a_call_that_is_cancelled_as_its_connection_opens_is_cancelled() -> None:
    """As when a job that has nothing left to do ends its server while that is asked who it is."""
    taking: list[asyncio.Task[object]] = []

    def plug() -> socket.socket:
        opening = asyncio.current_task()
        assert opening is not None
        opening.add_done_callback(lambda _: taking[0].cancel())
        return socket.socket()

    listening = await asyncio.start_server(Endpoint().serve, "127.0.0.1", 0)
    connections = Connections("127.0.0.1", listening.sockets[0].getsockname()[1], connecting=plug)
    taking.append(asyncio.create_task(connections.take()))
    await asyncio.wait(taking, timeout=60)
    assert taking[0].cancelled()
    listening.close()
