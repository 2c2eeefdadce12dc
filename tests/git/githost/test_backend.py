"""The CGI relay, with real processes in place of `git http-backend`."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from osmosis.platform.git.git_http_backend import BackendResponse, RequestLimits, parse_head
from support.waiting import until

ECHO = """
import sys
body = sys.stdin.buffer.read()
sys.stdout.buffer.write(b"Status: 202 Fine\\r\\nContent-Type: text/x\\r\\n\\r\\n" + body[::-1])
"""
SLEEP = """
import sys, time
open(sys.argv[1], "w").write(str(__import__("os").getpid()))
sys.stdout.write("Content-Type: text/x\\r\\n\\r\\nbegun"); sys.stdout.flush()
time.sleep(600)
"""


class Wire:
    """Both ends of an ASGI request."""

    def __init__(self, chunks: list[bytes], *, leave: asyncio.Event | None = None) -> None:
        self.chunks = list(chunks)
        self.leave = leave or asyncio.Event()
        self.sent: list[dict[str, Any]] = []

    async def receive(self) -> dict[str, Any]:
        if self.chunks:
            chunk = self.chunks.pop(0)
            return {"type": "http.request", "body": chunk, "more_body": bool(self.chunks)}
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(dict(message))

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent[1:])


def respond(code: str, *args: str, limits: RequestLimits | None = None, on_exit: Any = None) -> BackendResponse:
    environ = {"PATH": os.environ["PATH"]}
    command = [sys.executable, "-S", "-c", code, *args]
    return BackendResponse(command, environ, asyncio.Semaphore(1), limits=limits, on_exit=on_exit)


async def gone(pid_file: Path) -> None:
    """Wait until the process named in the file no longer exists."""
    pid = int(pid_file.read_text())

    def ended() -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False

    await until(ended, what=f"the end of process {pid}")


async def until_begun(wire: Wire) -> None:
    await until(lambda: len(wire.sent) >= 2)


@pytest.mark.parametrize(
    ("block", "status", "headers"),
    [
        (b"Content-Type: a/b\r\nX: 1\r\n", 200, [(b"content-type", b"a/b"), (b"x", b"1")]),
        (b"Status: 404 Not Found\nX:y\n", 404, [(b"x", b"y")]),
        (b"", 200, []),
    ],
)
def test_head(block: bytes, status: int, headers: list[tuple[bytes, bytes]]) -> None:
    assert parse_head(block) == (status, headers)


@pytest.mark.parametrize("block", [b"no colon\r\n", b" X: folded\r\n", b"Status: 99 Odd\r\n", b"Status: x\r\n", b": y"])
def test_what_is_no_head_is_refused(block: bytes) -> None:
    with pytest.raises(ValueError):
        parse_head(block)


async def test_body_goes_in_and_comes_out_larger_than_any_pipe() -> None:
    chunk = bytes(range(256)) * 1024
    wire = Wire([chunk] * 8)
    await respond(ECHO)({}, wire.receive, wire.send)
    assert wire.status == 202
    assert wire.body == (chunk * 8)[::-1]
    assert wire.sent[-1]["more_body"] is False


async def test_a_client_that_leaves_takes_the_process_with_it(tmp_path: Path) -> None:
    leave, ended = asyncio.Event(), asyncio.Event()

    async def on_exit() -> None:
        ended.set()

    wire = Wire([b""], leave=leave)
    response = respond(SLEEP, str(tmp_path / "pid"), on_exit=on_exit)
    task = asyncio.create_task(response({}, wire.receive, wire.send))
    await until_begun(wire)
    leave.set()
    await task
    await gone(tmp_path / "pid")
    assert ended.is_set(), "a push that lost its client may have moved refs: the sync must run"


async def test_a_cancelled_request_takes_the_process_with_it(tmp_path: Path) -> None:
    wire = Wire([b""])
    task = asyncio.create_task(respond(SLEEP, str(tmp_path / "pid"))({}, wire.receive, wire.send))
    await until_begun(wire)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await gone(tmp_path / "pid")


async def test_silence_is_ended(tmp_path: Path) -> None:
    wire = Wire([b""])
    await respond(SLEEP, str(tmp_path / "pid"), limits=RequestLimits(idle_s=0.3))({}, wire.receive, wire.send)
    await gone(tmp_path / "pid")
    assert wire.body == b"begun"


async def test_too_large_a_body_is_refused() -> None:
    wire = Wire([b"x" * 1000] * 3)
    await respond(ECHO, limits=RequestLimits(body_bytes=2500))({}, wire.receive, wire.send)
    assert wire.status == 413


@pytest.mark.parametrize(
    "code", ["import sys; sys.exit(3)", "print('no head')", "print('X: ' + 'y' * 99999 + chr(10))"]
)
async def test_a_bad_answer_is_a_502(code: str) -> None:
    wire = Wire([b""])
    await respond(code)({}, wire.receive, wire.send)
    assert wire.status == 502


async def test_an_answer_before_the_body_is_read_is_relayed() -> None:
    wire = Wire([b"z" * 200_000] * 5)
    code = "import sys; sys.stdin.close(); print('Status: 403 No'); print(); print('refused')"
    await respond(code)({}, wire.receive, wire.send)
    assert wire.status == 403
    assert wire.body.strip() == b"refused"


async def test_on_exit_is_over_before_the_answer_is() -> None:
    order: list[str] = []
    wire = Wire([b"a"])

    async def on_exit() -> None:
        await asyncio.sleep(0)
        order.append("synced")

    async def send(message: Any) -> None:
        await wire.send(message)
        if message["type"] == "http.response.body" and not message["more_body"]:
            order.append("answered")

    await respond(ECHO, on_exit=on_exit)({}, wire.receive, send)
    assert order == ["synced", "answered"]
