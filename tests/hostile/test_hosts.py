"""Servers answer to their own names only, and one without a key takes nothing that a web page can send unasked."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from fastapi.testclient import TestClient

from osmosis.base.http_server import BoundedHttp, HostNames
from osmosis.platform.app import create_app
from osmosis.platform.settings import PlatformSettings
from osmosis.sdk.backend import LocalBackend
from osmosis.sdk.workflow import AgentWorkflow
from osmosis.serve.server.run import ServeError, ServeOptions, build_app, choose_host, finish_app
from support.server import running_app


class Nothing(AgentWorkflow):
    async def run(self, ctx) -> None:
        raise AssertionError("never run")


@pytest.mark.parametrize(
    ("names", "header", "accepted"),
    [
        ((), "127.0.0.1:7575", True),
        ((), "localhost", True),
        ((), "[::1]:80", True),
        ((), "", False),
        ((), "evil.example", False),
        ((), "localhost.evil.example", False),
        ((), "127.0.0.1.evil.example", False),
        (("osmosis.lan",), "OSMOSIS.lan.:443", True),
        (("osmosis.lan",), "a.osmosis.lan", False),
        (("*.osmosis.lan",), "a.osmosis.lan", True),
        (("*.osmosis.lan",), "evilosmosis.lan", False),
        (("2001:db8::1",), "[2001:db8::1]:80", True),
        (("*",), "anything", True),
        (("*",), "", False),
    ],
)
def test_names(names: tuple[str, ...], header: str, accepted: bool) -> None:
    assert HostNames(names).accepts(header) is accepted


def test_the_platform_answers_to_its_names_only(tmp_path: Path) -> None:
    settings = PlatformSettings(
        data_dir=tmp_path,
        worker=False,
        public_url="https://osmosis.example",
        allowed_hosts=("osmosis.lan",),
        environ={},
    )
    app = create_app(settings)
    for host, status in {
        "127.0.0.1:7575": 401, "osmosis.example": 401, "osmosis.lan": 401, "evil.example": 421, "a b": 421,
    }.items():  # fmt: skip
        answer = TestClient(app).get("/api/cli/verify", headers={"Host": host})
        assert answer.status_code == status, host
    refused = TestClient(app).get("/api/cli/verify", headers={"Host": "evil.example"}).json()
    assert "--allowed-host" in refused["hint"]
    assert TestClient(app).get("/health", headers={"Host": "10.0.0.7:7575"}).status_code == 200  # a load balancer


def test_allowed_hosts_of_the_environment(tmp_path: Path) -> None:
    environ = {"OSMOSIS_ALLOWED_HOSTS": "a.lan, *.b.lan,"}
    assert PlatformSettings.from_environ(environ, data_dir=tmp_path).allowed_hosts == ("a.lan", "*.b.lan")


def test_a_local_server_is_reached_by_this_machine_only() -> None:
    assert choose_host(None, local=True) == "127.0.0.1"
    assert choose_host(None, local=False) == "0.0.0.0"
    assert choose_host("::1", local=True) == "::1"
    for host in ("0.0.0.0", "192.168.1.5", "::", "example.com"):
        with pytest.raises(ServeError, match="local mode has no API key"):
            choose_host(host, local=True)
        assert choose_host(host, local=False) == host


def test_a_web_page_cannot_start_a_rollout_on_a_local_server(tmp_path: Path) -> None:
    options = ServeOptions(local=True, log_level="error")
    app = finish_app(build_app(LocalBackend(Nothing), options, {"OSMOSIS_DATA_DIR": str(tmp_path)}), options)
    with TestClient(app, base_url="http://127.0.0.1:9000") as page:
        for kind in ("text/plain", "text/plain; application/json", "application/x-www-form-urlencoded", ""):
            headers = {"Content-Type": kind, "Origin": "https://evil.example"}
            answer = page.post("/rollout", content=b"{}", headers=headers)
            assert answer.status_code == 415, kind
        assert page.post("/rollout", content=(part for part in [b"{}"])).status_code == 415  # chunked
        ours = {"Content-Type": "application/json; charset=utf-8"}
        assert page.post("/rollout", content=b"{}", headers=ours).status_code == 422  # read, and incomplete
        assert page.post("/rollout", content=b"{}", headers={**ours, "Host": "evil.example"}).status_code == 421
        assert "access-control-allow-origin" not in page.options("/rollout").headers


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
