"""What answers for a deployed model, or asks for it, reaches nothing but that: redirects, bombs, streams without end,
other workspaces, keys in places where they would be logged."""

import asyncio
import gzip
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx
import psutil
import pytest

from osmosis.platform import tables
from osmosis.platform.auth import tokens, users
from osmosis.platform.workspaces import service as workspaces
from support.platform_app import RunningPlatform, running_platform

MIB = 1024 * 1024
QUESTION = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


@dataclass
class Port:
    """A listener on this machine that sends `answer` and then `piece` for as long as somebody reads."""

    number: int = 0
    answer: bytes = b""
    piece: bytes = b""
    heads: list[bytes] = field(default_factory=list)
    open: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            self.heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(self.answer)
            await writer.drain()
            while self.piece:
                writer.write(self.piece)
                await writer.drain()
                await asyncio.sleep(0)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open -= 1
            writer.close()


@contextmanager
def listening(*ports: Port) -> Iterator[None]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def begin() -> list[asyncio.Server]:
        servers = [await asyncio.start_server(port.serve, "127.0.0.1", 0) for port in ports]
        for port, server in zip(ports, servers, strict=True):
            port.number = server.sockets[0].getsockname()[1]
        return servers

    servers = asyncio.run_coroutine_threadsafe(begin(), loop).result(10)
    try:
        yield
    finally:
        for server in servers:
            loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    with running_platform(tmp_path_factory.mktemp("deployments") / "data") as running:
        yield running


def serve(platform: RunningPlatform, endpoint: str, *, workspace_id: str = "", name: str = "tiny") -> None:
    """Let the job of a deployment have said that its model answers there."""
    workspace_id = workspace_id or platform.workspace_id
    with platform.parts.db.write() as session:
        row = session.query(tables.Deployment).filter_by(workspace_id=workspace_id, name=name).first()
        row = row or tables.Deployment(workspace_id=workspace_id, name=name)
        row.status, row.progress = "running", {"stage": "serving", "endpoint": endpoint}
        session.add(row)


def ask(platform: RunningPlatform, body: object = QUESTION, **headers: str) -> httpx.Response:
    sent = headers or {"Authorization": platform.headers["Authorization"]}
    return httpx.post(f"{platform.url}/v1/chat/completions", json=body, headers=sent, timeout=60)


def test_an_answer_leads_nowhere_and_says_only_what_answers_say(platform: RunningPlatform) -> None:
    elsewhere = Port(answer=PLAIN + b"Content-Length: 6\r\n\r\nsecret")
    served = Port()
    with listening(elsewhere, served):
        serve(platform, f"http://127.0.0.1:{served.number}/v1")
        for status in (301, 302, 303, 307, 308):
            there = f"http://127.0.0.1:{elsewhere.number}/latest/meta-data".encode()
            served.answer = (
                b"HTTP/1.1 %d Go\r\nLocation: %s\r\nSet-Cookie: osmosis_session=x\r\nX-Other: y\r\n"
                b"Content-Length: 0\r\n\r\n" % (status, there)
            )
            answer = ask(platform)
            assert (answer.status_code, answer.text) == (status, "")
            assert not {"location", "set-cookie", "x-other"} & set(answer.headers)
        assert elsewhere.heads == [], "no redirect is followed"
        head = served.heads[0].lower()
        assert platform.token.encode() not in head, "the job learns nobody's token"
        assert b"x-osmosis" not in head
        assert b"cookie" not in head


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://127.0.0.1@192.0.2.7/v1", "http://192.0.2.7/#127.0.0.1", "http://192.0.2.7\\@127.0.0.1/v1",
        "http://127.0.0.1.evil.example/v1", "file:///etc/passwd", "http://[::ffff:192.0.2.7]/v1", "gopher://127.0.0.1/",
    ],
)  # fmt: skip
def test_an_address_that_only_looks_like_this_machine_is_not_asked(platform: RunningPlatform, endpoint: str) -> None:
    serve(platform, endpoint)
    answer = ask(platform)
    assert answer.status_code in (403, 503), answer.text
    assert "192.0.2.7" not in answer.text


def test_an_answer_without_end_takes_no_memory_and_ends_with_who_asked(platform: RunningPlatform) -> None:
    squeezed = gzip.compress(b" " * (512 * MIB), 1)
    zipped = PLAIN + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s" % (len(squeezed), squeezed)
    endless = Port(answer=PLAIN + b"\r\n", piece=b" " * MIB)
    bomb = Port(answer=zipped)
    long_head = Port(answer=b"HTTP/1.1 200 OK\r\n", piece=b"X-A: " + b"b" * 4000 + b"\r\n")
    stream = Port(answer=STREAM, piece=b"data: " + b"x" * 10_000 + b"\n\n")
    before = psutil.Process().memory_info().rss
    with listening(endless, bomb, long_head, stream):
        serve(platform, f"http://127.0.0.1:{bomb.number}/v1")
        assert ask(platform).content == squeezed, "nothing is inflated here"
        for port in (endless, long_head):
            serve(platform, f"http://127.0.0.1:{port.number}/v1")
            answer = ask(platform)
            assert answer.status_code >= 500, answer.text[:200]
            assert answer.json()["error"]["type"] == "server_error"
        serve(platform, f"http://127.0.0.1:{stream.number}/v1")
        headers = {"Authorization": platform.headers["Authorization"]}
        body = {**QUESTION, "stream": True}
        with httpx.stream("POST", f"{platform.url}/v1/chat/completions", json=body, headers=headers) as answer:
            read = 0
            for piece in answer.iter_bytes():
                read += len(piece)
                if read > 64 * MIB:
                    break
        wait(lambda: stream.open == 0)
        wait(lambda: not platform.app.state.inference._in_flight)
    assert psutil.Process().memory_info().rss < before + 300 * MIB


def wait(condition: Callable[[], bool]) -> None:
    for _ in range(400):
        if condition():
            return
        threading.Event().wait(0.05)
    raise AssertionError("it did not come true")


def test_a_key_counts_in_a_header_only_and_is_in_no_log(
    platform: RunningPlatform, caplog: pytest.LogCaptureFixture
) -> None:
    serve(platform, "http://127.0.0.1:1/v1")
    token = platform.token
    with caplog.at_level(logging.DEBUG):
        for path in (f"chat/completions?key={token}", f"chat/completions?api_key={token}&access_token={token}"):
            assert httpx.post(f"{platform.url}/v1/{path}", json=QUESTION).status_code == 401
        assert httpx.post(f"{platform.url}/v1/chat/completions", json={**QUESTION, "api_key": token}).status_code == 401
        for path in ("../api/cli/verify", "%2e%2e/api/cli/verify", "chat/completions/../../api/jobs/x/spec", "//evil"):
            assert httpx.post(f"{platform.url}/v1/{path}", json=QUESTION).status_code in (401, 404, 405)
        assert ask(platform, QUESTION, **{"x-api-key": token}).status_code == 503
    ours = [record.getMessage() for record in caplog.records if record.name.startswith(("osmosis", "uvicorn"))]
    assert ours
    assert token not in "".join(ours)


def test_another_workspaces_model_is_none_whoever_names_it(platform: RunningPlatform) -> None:
    with platform.parts.db.write() as session:
        other = users.create_user(session, "mallory", email="m@localhost", name="Mallory")
        workspaces.create(session, other, "elsewhere")
        mine = tokens.issue(session, other, "test").text
    served = Port(answer=PLAIN + b"Content-Length: 2\r\n\r\n{}")
    with listening(served):
        serve(platform, f"http://127.0.0.1:{served.number}/v1")
        bearer = {"Authorization": f"Bearer {mine}"}
        for more in ({}, {"X-Osmosis-Workspace": "demo"}, {"X-Osmosis-Git": "local/demo"}, {"X-Osmosis-Workspace": ""}):
            for model in ("tiny", "osmosis/tiny", "tiny:tiny", "demo/tiny", "../demo/tiny", "osmosis/osmosis/tiny"):
                answer = ask(platform, {**QUESTION, "model": model}, **bearer, **more)
                assert answer.status_code in (403, 404), (more, model, answer.text)
            listed = httpx.get(f"{platform.url}/v1/models", headers={**bearer, **more})
            assert "tiny" not in listed.text
        assert ask(platform).status_code == 200
        assert len(served.heads) == 1


@pytest.mark.parametrize("header", ["Authorization", "x-api-key"])
def test_a_question_is_as_long_as_the_limit_for_who_has_a_key(platform: RunningPlatform, header: str) -> None:
    key = {header: platform.headers["Authorization"] if header == "Authorization" else platform.token}
    served = Port(answer=PLAIN + b"Content-Length: 2\r\n\r\n{}")
    with listening(served):
        serve(platform, f"http://127.0.0.1:{served.number}/v1")
        assert ask(platform, {**QUESTION, "user": "x" * MIB}, **key).status_code == 200
        assert ask(platform, {**QUESTION, "user": "x" * (17 * MIB)}, **key).status_code == 413
        wrong = {name: value + "x" for name, value in key.items()}
        assert ask(platform, {**QUESTION, "user": "x" * MIB}, **wrong).status_code == 401
        assert len(served.heads) == 1
