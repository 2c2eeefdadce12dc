"""Clients that are slow on purpose, or never end their headers, hold no connection and no memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from osmosis.base.bounded_http import BoundedHttp
from osmosis.testing.server import running_app

PATIENCE_S = 0.4
POST = b"POST /echo HTTP/1.1\r\nHost: 127.0.0.1\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


class Impatient(BoundedHttp):
    look_s = 0.1
    patience_s = PATIENCE_S


def echo_app() -> FastAPI:
    app = FastAPI()

    @app.post("/echo")
    async def echo(request: Request) -> Response:
        return Response(str(len(await request.body())))

    @app.get("/endless")
    async def endless() -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            while True:
                yield bytes(64 * 1024)
                await asyncio.sleep(0)  # uvicorn no longer waits once the client is gone

        return StreamingResponse(parts())

    return app


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    async with running_app(echo_app(), http=Impatient) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port or 0)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()


@pytest.mark.parametrize(
    "sent",
    [b"", b"POST /echo HT", POST + b"X-Slow: ", POST + b"Content-Length: 10\r\n\r\nabc"],
    ids=["nothing", "half a request line", "half the headers", "half a body"],
)
async def test_a_request_that_does_not_go_on_is_ended(sent: bytes) -> None:
    async with connected() as (reader, writer):
        writer.write(sent)
        answer = await asyncio.wait_for(reader.read(), 20)
        assert answer.startswith(b"HTTP/1.1 408 ")


async def test_a_trickle_does_not_keep_a_request_alive() -> None:
    async with connected() as (reader, writer):
        writer.write(POST + b"Content-Length: 1000000\r\n\r\n")

        async def trickle() -> None:
            while True:
                writer.write(b"x")
                await asyncio.sleep(0.01)

        drip = asyncio.ensure_future(trickle())
        try:
            assert (await asyncio.wait_for(reader.read(), 60)).startswith(b"HTTP/1.1 408 ")
        except ConnectionError:
            pass  # closed while a drop was on its way, which takes the answer with it
        finally:
            drip.cancel()


async def test_who_reads_no_answer_is_let_go() -> None:
    async with running_app(echo_app(), http=Impatient) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port or 0, limit=1024)
        writer.write(b"GET /endless HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        await reader.readexactly(100)  # and no more: the stream's small buffer stops the transport
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):  # noqa: PT012 - what was buffered comes first
            await asyncio.sleep(PATIENCE_S * 4)
            await asyncio.wait_for(reader.readexactly(10**9), 20)
        writer.transport.abort()


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([POST, *[b"X-%d: y\r\n" % n for n in range(10_000)]], id="endless headers"),
        pytest.param([POST + b"X: ", *[b"y" * 1000] * 100], id="one endless header"),
        pytest.param([b"POST /", *[b"y" * 1000] * 100], id="an endless address"),
        pytest.param([CHUNKED, *[b"1;" + b"y" * 90 + b"\r\nx\r\n"] * 2000], id="frames"),
        pytest.param([CHUNKED + b"0\r\n", *[b"X: y\r\n"] * 20_000], id="trailers"),
    ],
)
async def test_what_is_no_body_is_bounded(pieces: list[bytes]) -> None:
    async with connected() as (reader, writer):
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            answer = await asyncio.wait_for(reader.read(), 20)
        except ConnectionError:
            return  # closed while there was still something to send
        assert answer.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 "))


async def test_requests_that_take_their_time_are_served() -> None:
    async with connected() as (reader, writer):
        for _ in range(2):  # on one connection
            writer.write(POST + b"Content-Length: 6000\r\n\r\n")
            for _ in range(12):  # longer than the patience, and never still
                writer.write(b"x" * 500)
                await asyncio.sleep(0.08)
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
            assert head.startswith(b"HTTP/1.1 200 ")
            assert await reader.readexactly(4) == b"6000"
