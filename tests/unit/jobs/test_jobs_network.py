"""The proxy through which a sandboxed build reaches package indexes: what it passes on, and to whom never."""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import pytest

from osmosis.jobs.sandboxes import IndexProxy

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Answers what it is told, and remembers what it was asked."""

    def __init__(self, answer: Callable[[bytes], bytes] = lambda head: ANSWER) -> None:
        self.heads: list[bytes] = []
        self._answer = answer
        self.port = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Server]:
        server = await asyncio.start_server(self._one, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        yield self
        server.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n") if not reader.at_eof() else b"":
            self.heads.append(head)
            writer.write(self._answer(head))
            await writer.drain()
            break
        writer.close()


async def asked(
    request: str, *, hosts: frozenset[str] = frozenset(), outside: bool = True, environ: Mapping[str, str] | None = None
) -> bytes:
    """The first that the proxy answers."""
    proxy = IndexProxy(hosts, outside=outside, environ=environ or {})
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        async with proxy.serving(listener):
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(request.encode("latin-1"))
            await writer.drain()
            answer = await asyncio.wait_for(reader.read(65536), 20)
            if answer.startswith(b"HTTP/1.1 200 Connected"):
                writer.write(b"GET /inside HTTP/1.1\r\n\r\n")
                await writer.drain()
                answer += await asyncio.wait_for(reader.read(65536), 20)
            writer.close()
            return answer


def connect(place: str) -> str:
    return f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n"


async def test_an_index_of_the_operators_is_reached_wherever_it_is() -> None:
    async with Server().running() as index:
        answer = await asked(connect(f"127.0.0.1:{index.port}"), hosts=frozenset({"127.0.0.1"}))
        assert answer.startswith(b"HTTP/1.1 200 Connected")
        assert answer.endswith(b"ok")
        assert index.heads[0].startswith(b"GET /inside ")


async def test_a_plain_index_is_asked_for_its_path_without_what_is_meant_for_proxies() -> None:
    async with Server().running() as index:
        request = (
            f"GET http://127.0.0.1:{index.port}/simple/x/?a=1 HTTP/1.1\r\nHost: here\r\nProxy-Authorization: z\r\n\r\n"
        )
        assert (await asked(request, hosts=frozenset({"127.0.0.1"}))).endswith(b"ok")
        assert index.heads[0].startswith(b"GET /simple/x/?a=1 HTTP/1.1\r\nHost: here\r\n")
        assert b"Proxy-Authorization" not in index.heads[0]
        assert b"Connection: close" in index.heads[0]


@pytest.mark.parametrize("outside", [True, False])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "10.0.0.1", "169.254.169.254", "192.168.1.1", "[::1]"])
async def test_nothing_of_this_machine_or_its_network_is_reached(host: str, outside: bool) -> None:
    async with Server().running() as here:
        answer = await asked(connect(f"{host}:{here.port}"), hosts=frozenset({"pypi.org"}), outside=outside)
        assert answer.startswith((b"HTTP/1.1 403 ", b"HTTP/1.1 502 ")), answer
        assert here.heads == []


async def test_a_run_that_reaches_its_gate_alone_reaches_no_other_host() -> None:
    answer = await asked(connect("example.org:443"), hosts=frozenset({"pypi.org"}), outside=False)
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"is not an index of this platform" in answer


@pytest.mark.parametrize(
    "request_line", ["GET /relative HTTP/1.1", "GET ftp://x/ HTTP/1.1", "CONNECT x:notaport HTTP/1.1"]
)
async def test_what_is_no_request_to_a_proxy_is_refused(request_line: str) -> None:
    assert (await asked(f"{request_line}\r\n\r\n")).startswith(b"HTTP/1.1 400 ")


async def test_the_operators_own_proxy_is_in_front() -> None:
    def upstream(head: bytes) -> bytes:
        return b"HTTP/1.1 200 Tunnel\r\n\r\n" + ANSWER

    async with Server(upstream).running() as front:
        environ = {"HTTPS_PROXY": f"http://us%40er:p%3Ass@127.0.0.1:{front.port}"}
        answer = await asked(connect("index.example:443"), hosts=frozenset({"index.example"}), environ=environ)
        assert answer.startswith(b"HTTP/1.1 200 Connected")
        assert front.heads[0].startswith(b"CONNECT index.example:443 HTTP/1.1\r\n")
        login = base64.b64encode(b"us@er:p:ss")
        assert b"Proxy-Authorization: Basic " + login in front.heads[0]


async def test_an_operators_proxy_that_refuses_is_said() -> None:
    async with Server(lambda head: b"HTTP/1.1 407 No\r\n\r\n").running() as front:
        environ = {"HTTPS_PROXY": f"http://127.0.0.1:{front.port}"}
        answer = await asked(connect("index.example:443"), hosts=frozenset({"index.example"}), environ=environ)
        assert answer.startswith(b"HTTP/1.1 502 ")


async def test_what_is_spared_from_the_operators_proxy_is_not_sent_there() -> None:
    async with Server().running() as front, Server().running() as index:
        environ = {"HTTP_PROXY": f"http://127.0.0.1:{front.port}", "NO_PROXY": "localhost, .internal"}
        request = f"GET http://localhost:{index.port}/simple HTTP/1.1\r\n\r\n"
        assert (await asked(request, hosts=frozenset({"localhost"}), environ=environ)).endswith(b"ok")
        assert front.heads == []
