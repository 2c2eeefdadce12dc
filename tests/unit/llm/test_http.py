"""HTTP calls against a server that says exactly what it is told, byte by byte."""

from __future__ import annotations

import asyncio
import gzip
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from osmosis.errors import ValidationError
from osmosis.llm.http import ConnectionFailed, HttpEndpoint, HttpPool
from support.private_tls import PrivateAuthority
from support.waiting import until

Answer = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
PACKED = gzip.compress(b"packed uninvited")
GZIPPED = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
TORN = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"


class Server:
    """Counts connections and keeps requests; `answer` decides what comes back."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.connections = 0
        self.requests: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(int(x.split(b":")[1]) for x in head.lower().split(b"\r\n") if b"content-length" in x)
                self.requests.append(head + await reader.readexactly(length))
                await self.answer(self.requests[-1], writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def running(*parts: bytes, hang_up: bool = False, timeout_s: float | None = 5.0) -> AsyncIterator[tuple]:
    async def answer(_: bytes, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        if hang_up:
            writer.close()

    server = Server(answer)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    wire = HttpEndpoint(
        f"http://127.0.0.1:{port}/v1/chat?x=1", {"authorization": "Bearer k"}, timeout_s=timeout_s, use_proxies=False
    )
    try:
        yield server, wire
    finally:
        await wire.close()
        listening.close()


async def test_one_connection_serves_calls_that_follow_each_other() -> None:
    async with running(OK) as (server, wire):
        for n in range(3):
            reply = await wire.post(b"body-%d" % n)
            assert (reply.status, reply.body) == (200, b"ok")
    assert server.connections == 1
    assert server.requests[2].endswith(b"\r\n\r\nbody-2")
    assert server.requests[0].startswith(b"POST /v1/chat?x=1 HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"authorization: Bearer k\r\n" in server.requests[0]


async def test_calls_at_once_have_a_connection_each() -> None:
    async with running(OK) as (server, wire):
        replies = await asyncio.gather(*(wire.post(b"%d" % n) for n in range(5)))
        assert [r.body for r in replies] == [b"ok"] * 5
        assert server.connections == 5
        await wire.post(b"again")
        assert server.connections == 5


@pytest.mark.parametrize(
    ("parts", "hang_up", "body"),
    [
        ((CHUNKED, b"3\r\nabc\r\n", b"2\r\nde\r\n0\r\n\r\n"), False, b"abcde"),
        ((b"HTTP/1.1 200 OK\r\n", b"Content-Le", b"ngth: 4\r\n\r\nab", b"cd"), False, b"abcd"),
        ((b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nuntil the end",), True, b"until the end"),
        ((b"HTTP/1.1 100 Continue\r\n\r\n", OK), False, b"ok"),
        ((GZIPPED % len(PACKED), PACKED), False, b"packed uninvited"),
    ],
)  # fmt: skip
async def test_bodies_of_every_kind(parts: tuple[bytes, ...], hang_up: bool, body: bytes) -> None:
    async with running(*parts, hang_up=hang_up) as (_, wire):
        assert (await wire.post(b"x")).body == body
        assert (await wire.post(b"x")).body == body


async def test_status_and_retry_after_are_handed_on() -> None:
    async with running(b"HTTP/1.1 429 Slow\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n") as (_, wire):
        reply = await wire.post(b"x")
    assert (reply.status, reply.headers["retry-after"], reply.body) == (429, "7", b"")


@pytest.mark.parametrize(
    ("parts", "why"), [((b"SSH-2.0-OpenSSH\r\n",), "not valid HTTP"), ((TORN,), "closed"), ((), "closed")]
)
async def test_what_is_no_answer_is_a_failed_connection(parts: tuple[bytes, ...], why: str) -> None:
    async with running(*parts, hang_up=True) as (_, wire):
        with pytest.raises(ConnectionFailed, match=why):
            await wire.post(b"x")


async def test_an_idle_connection_that_the_server_closed_costs_no_call() -> None:
    async def answer(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        await writer.drain()
        writer.close()

    async with running() as (server, wire):
        server.answer = answer
        assert [(await wire.post(b"x")).body for _ in range(3)] == [b"ok"] * 3
    assert server.connections == 3


async def test_a_server_with_a_certificate_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = PrivateAuthority.made(tmp_path, "127.0.0.1")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.certificate, authority.key)
    async with running(OK) as (server, _):
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=context)
        url = f"https://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
        stranger = HttpEndpoint(url, {}, timeout_s=5.0, use_proxies=False)
        with pytest.raises(ConnectionFailed, match="CERTIFICATE_VERIFY_FAILED"):
            await stranger.post(b"x")
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca_file))
        wire = HttpEndpoint(url, {}, timeout_s=5.0, use_proxies=False)
        before = server.connections
        assert [(await wire.post(b"x")).body for _ in range(2)] == [b"ok"] * 2
        assert server.connections == before + 1
        await wire.close()
        listening.close()


async def test_calls_go_through_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(b"HTTP/1.1 429 Slow\r\nRetry-After: 7\r\nContent-Length: 2\r\n\r\nok") as (server, wire):
        monkeypatch.setenv("http_proxy", wire._url.partition("/v1")[0])
        behind = HttpEndpoint("http://model.example/v1", {}, timeout_s=5.0, use_proxies=True)
        reply = await behind.post(b"x")
        await behind.close()
    assert (reply.status, reply.headers["retry-after"], reply.body) == (429, "7", b"ok")
    assert server.requests[0].startswith(b"POST http://model.example/v1 HTTP/1.1\r\n")


async def test_nobody_listening_is_an_os_error() -> None:
    wire = HttpEndpoint("http://127.0.0.1:9/v1", {}, timeout_s=1.0, use_proxies=False)
    with pytest.raises(OSError, match=r"9|refused"):
        await wire.post(b"x")


async def test_a_late_answer_never_reaches_the_next_call() -> None:
    """A call that ran out of time, or was cancelled, takes its connection with it."""
    late = asyncio.Event()

    async def answer(request: bytes, writer: asyncio.StreamWriter) -> None:
        if request.endswith(b"slow"):
            await late.wait()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nLATE")
        else:
            writer.write(OK)

    async with running(timeout_s=0.2) as (server, wire):
        server.answer = answer
        with pytest.raises(asyncio.TimeoutError):
            await wire.post(b"slow")
        cancelled = asyncio.create_task(wire.post(b"slow"))
        await until(lambda: len(server.requests) == 2, what="the second call")
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        late.set()
        assert (await wire.post(b"quick")).body == b"ok"


def test_a_line_break_in_a_header_is_refused() -> None:
    with pytest.raises(ValidationError, match="line break"):
        HttpEndpoint("http://127.0.0.1:1/v1", {"authorization": "Bearer a\r\nX: y"}, timeout_s=None, use_proxies=False)


async def test_endpoints_share_the_connections_of_a_pool() -> None:
    async with running(OK) as (server, wire):
        base = wire._url.partition("/v1")[0]
        pool = HttpPool()
        for number in range(5):
            endpoint = HttpEndpoint(f"{base}/rollouts/{number}", {}, timeout_s=30.0, use_proxies=False, pool=pool)
            assert (await endpoint.post(b"body")).body == b"ok"
            await endpoint.close()
        assert (server.connections, len(server.requests)) == (1, 5)
        await pool.close()
        assert (await endpoint.post(b"body")).body == b"ok"
        await pool.close()


async def test_a_redirect_is_an_answer() -> None:
    async with running(b"HTTP/1.1 302 Found\r\nLocation: /else\r\nContent-Length: 0\r\n\r\n") as (server, wire):
        assert (await wire.post(b"x")).status == 302
    assert len(server.requests) == 1
