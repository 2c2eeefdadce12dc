"""Run `git http-backend` as a CGI program behind ASGI, both directions streamed. Processes, bytes, idle and total time
are limited; a client that goes away takes its processes with it."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from osmosis.base.processes import signal_group

log = logging.getLogger(__name__)

_CHUNK = 64 * 1024
_HEADER_LIMIT = 32 * 1024
_STDERR_KEPT = 4096
_KILL_GRACE_S = 2.0


@dataclass(frozen=True, slots=True)
class RequestLimits:
    body_bytes: int = 4 * 1024**3
    idle_s: float = 300.0
    total_s: float = 3600.0


class ClientGone(Exception): ...


class BodyPastLimit(Exception): ...


def parse_head(block: bytes) -> tuple[int, list[tuple[bytes, bytes]]]:
    status = 200
    headers: list[tuple[bytes, bytes]] = []
    for line in block.replace(b"\r\n", b"\n").split(b"\n"):
        if not line:
            continue
        name, colon, value = line.partition(b":")
        if not colon or not name.strip() or name != name.strip():
            raise ValueError(f"not a CGI header line: {line[:80]!r}")
        if name.lower() == b"status":
            status = int(value.split(None, 1)[0])
            if not 100 <= status <= 599:
                raise ValueError(f"not an HTTP status: {status}")
        else:
            headers.append((name.lower(), value.strip()))
    return status, headers


class BackendResponse(Response):
    """An ASGI response of one CGI process. `on_exit` is awaited before the response ends."""

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        slots: asyncio.Semaphore,
        *,
        limits: RequestLimits | None = None,
        on_exit: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__()
        self.command = list(command)
        self.environ = dict(environ)
        self.slots = slots
        self.limits = limits or RequestLimits()
        self.on_exit = on_exit
        self._started = False
        self._last_byte = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self.slots:
            process = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self.environ,
                limit=_CHUNK,
                start_new_session=True,
            )
            stderr = asyncio.create_task(_tail(process.stderr))
            try:
                await self._talk(process, receive, send)
            except ClientGone:
                log.info("the git client disconnected; stopping its process")
                return
            except BodyPastLimit:
                await self._fail(send, 413, "the push exceeds this platform's size limit")
            except TimeoutError:
                await self._fail(send, 504, "git sent nothing for too long and was stopped")
            except ValueError as error:
                log.warning("invalid answer from git http-backend: %s", error)
                await self._fail(send, 502, "git failed; see the platform's log")
            finally:
                # End the process group, with SIGTERM first, so that git removes what it received in part.
                for sign in (signal.SIGTERM, signal.SIGKILL):
                    if process.returncode is not None:
                        break
                    signal_group(process.pid, sign)
                    with contextlib.suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(asyncio.shield(process.wait()), _KILL_GRACE_S)
                if self.on_exit is not None:
                    await self.on_exit()
                errors = await stderr
                if process.returncode and errors:
                    log.warning("git http-backend exited with %s: %s", process.returncode, errors)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _talk(self, process: asyncio.subprocess.Process, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        self._last_byte = loop.time()
        deadline = loop.time() + self.limits.total_s
        feed = asyncio.create_task(self._feed(receive, process.stdin))
        relay = asyncio.create_task(self._relay(process, send))
        try:
            while not relay.done():
                left = min(self._last_byte + self.limits.idle_s, deadline) - loop.time()
                if left <= 0:
                    raise TimeoutError
                await asyncio.wait({feed, relay}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                if feed.done() and not relay.done():
                    feed.result()
            relay.result()
        finally:
            for task in (feed, relay):
                task.cancel()
            await asyncio.gather(feed, relay, return_exceptions=True)

    async def _feed(self, receive: Receive, stdin: asyncio.StreamWriter | None) -> None:
        assert stdin is not None
        received, reading = 0, True
        while True:
            message: Message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            chunk = message.get("body", b"")
            received += len(chunk)
            self._last_byte = asyncio.get_running_loop().time()
            if received > self.limits.body_bytes:
                raise BodyPastLimit
            if reading and chunk:
                try:
                    stdin.write(chunk)
                    await stdin.drain()
                except (BrokenPipeError, ConnectionResetError):
                    reading = False  # the process has its answer already and wants no more
            if not message.get("more_body", False):
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    stdin.close()

    async def _relay(self, process: asyncio.subprocess.Process, send: Send) -> None:
        assert process.stdout is not None
        status, headers = parse_head(await _read_head(process.stdout))
        self._started = True
        await send({"type": "http.response.start", "status": status, "headers": headers})
        while chunk := await process.stdout.read(_CHUNK):
            self._last_byte = asyncio.get_running_loop().time()
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await process.wait()

    async def _fail(self, send: Send, status: int, text: str) -> None:
        if self._started:
            return
        body = text.encode() + b"\n"
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": True})


async def _read_head(stdout: asyncio.StreamReader) -> bytes:
    block = b""
    while len(block) < _HEADER_LIMIT:
        line = await stdout.readline()
        if not line:
            raise ValueError("the answer ended within its headers")
        if line in (b"\r\n", b"\n"):
            return block
        block += line
    raise ValueError("the header block is too long")


async def _tail(stream: asyncio.StreamReader | None) -> str:
    assert stream is not None
    tail = b""
    while chunk := await stream.read(_CHUNK):
        tail = (tail + chunk)[-_STDERR_KEPT:]
    return tail.decode(errors="replace").strip()
