import asyncio
import contextlib
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp
import orjson

from osmosis import errors
from osmosis.base.net import backoff_delay, is_loopback, parse_retry_after
from osmosis.base.processes import end_tasks
from osmosis.base.redact import Redactor
from osmosis.base.safe_open import ArtifactFile
from osmosis.errors import InternalError, LeaseLost, NetworkError, OsmosisError
from osmosis.records.api.workers import JobFolder, JobFolders, StoredExample
from osmosis.records.base import Record
from osmosis.records.run.job import CheckpointReport, HeartbeatReply, JobResult, LogLine, MetricPoint, Progress
from osmosis.records.run.rows import Key

TIMEOUT_S = 60.0
TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504, errors.DiskFull.http_status})
PATIENCE_S = 900.0
CHUNK = 1 << 18
OUT_OF_RANGE = 416
UNHURRIED = aiohttp.ClientTimeout(total=None, sock_connect=TIMEOUT_S, sock_read=TIMEOUT_S)
T = TypeVar("T")


class JobClient:
    def __init__(self, base_url: str, run_id: str, token: str, *, ca_file: str = "") -> None:
        self._base = f"{base_url.rstrip('/')}/api/jobs/{run_id}"
        self._headers = {"Authorization": f"Bearer {token}"}
        self._ca_file = ca_file
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        if not self._base.startswith("https://") and not is_loopback(self._base):
            message = f"{self._base} is neither https nor on this machine: the lease of a job does not go there"
            hint = "give the worker the platform's https:// address: --platform-url https://HOST"
            raise errors.ValidationError(message, hint=hint)
        trusted = ssl.create_default_context(cafile=self._ca_file) if self._ca_file else True
        # The platform is addressed directly: a proxy in the environment is for the rollout's own traffic.
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_S), trust_env=False, connector=aiohttp.TCPConnector(ssl=trusted)
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def post(self, path: str, body: bytes, *, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
        return await self.request("POST", path, body, timeout_s=timeout_s)

    async def request(
        self, method: str, path: str, body: bytes | None, *, timeout_s: float = TIMEOUT_S
    ) -> dict[str, Any]:
        """Return the JSON object of the answer; for newline-delimited JSON, its `lines`. Raise OsmosisError."""
        headers, limit = {"Content-Type": "application/json"}, aiohttp.ClientTimeout(total=timeout_s)
        async with self._answer(method, path, limit, headers, data=body) as response:
            text = await response.read()
        if response.content_type == "application/x-ndjson":
            return {"lines": [orjson.loads(line) for line in text.splitlines() if line]}
        return _object(text)

    async def save(self, path: str, target: Path) -> None:
        part = target.with_name(f"{target.name}.part")
        have = part.stat().st_size if part.exists() else 0
        headers = {"Range": f"bytes={have}-"} if have else {}
        async with self._answer("GET", path, UNHURRIED, headers) as response:
            if response.status == OUT_OF_RANGE:  # another file than before
                part.unlink()
                raise errors.NetworkError(f"{self._base}/{path} has changed")
            with part.open("ab" if response.status == 206 else "wb") as out:
                async for piece in response.content.iter_chunked(CHUNK):
                    out.write(piece)
        part.replace(target)

    async def send(self, path: str, pieces: Iterator[bytes]) -> dict[str, Any]:
        async def body() -> AsyncIterator[bytes]:
            for piece in pieces:
                yield piece

        headers = {"Content-Type": "application/octet-stream"}
        async with self._answer("PUT", path, UNHURRIED, headers, data=body()) as response:
            return _object(await response.read())

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, limit: aiohttp.ClientTimeout, headers: Mapping[str, str], *, data: object = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            raise RuntimeError("the client is not open")
        url, headers = f"{self._base}/{path}" if path else self._base, {**self._headers, **headers}
        try:
            async with self._session.request(method, url, data=data, headers=headers, timeout=limit) as response:
                if response.status >= 400 and response.status != OUT_OF_RANGE:
                    raise self._refused(path, response, await response.read())
                yield response
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as problem:
            raise errors.NetworkError(f"{self._base}: {type(problem).__name__}: {problem}") from problem

    def _refused(self, path: str, response: aiohttp.ClientResponse, text: bytes) -> errors.OsmosisError:
        if response.status in TRY_AGAIN:
            asked_s = parse_retry_after(response.headers.get("Retry-After"))
            detail = _object(text).get("message") if response.status == errors.DiskFull.http_status else ""
            status = f"HTTP {response.status}{f': {detail}' if detail else ''}"
            return errors.NetworkError(f"{self._base}/{path}: {status}", retry_after=asked_s)
        problem = errors.from_wire(response.status, _object(text))
        if isinstance(problem, errors.LeaseLost):
            return problem
        if isinstance(problem, (errors.AuthRequired, errors.Forbidden, errors.NotFound)):
            # The token is no longer this run's lease, or the run was deleted: either way it is not ours.
            return errors.LeaseLost(problem.message, status_code=response.status)
        return problem


async def patiently(
    ask: Callable[[], Awaitable[T]],
    *,
    patience_s: float = PATIENCE_S,
    pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> T:
    ends, failures = time.monotonic() + patience_s, 0
    while True:
        try:
            return await ask()
        except errors.NetworkError as problem:
            left, failures = ends - time.monotonic(), failures + 1
            if left <= 0:
                message = f"the platform has not answered for {patience_s:.0f} s: {problem.message}"
                hint = "start the platform again; it resumes the run from its journal"
                raise errors.NetworkError(message, hint=hint) from problem
            asked_s = problem.details.get("retry_after")
            await pause(min(backoff_delay(failures, base_s=0.25, max_s=10.0, asked_s=asked_s), left))


def _object(text: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


BATCH_SIZE = 100
BATCH_BYTES = 4 * 1024 * 1024
BATCH_WAIT_S = 0.5
PAGE = 200
LOG_LINES_KEPT = 20_000
HELD_BYTES = 64 * 1024 * 1024
HEARTBEAT_TIMEOUT_S = 10.0
SILENT_AT_MOST_S = 60.0


@dataclass(slots=True)
class _Lane:
    path: str
    key: str
    kept: int | None = None  # Most messages that wait; the oldest are dropped. None: no limit.
    waiting: deque[bytes] = field(default_factory=deque)
    size: int = 0
    dropped: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, message: bytes) -> None:
        if self.kept is not None and len(self.waiting) >= self.kept:
            self.size -= len(self.waiting.popleft())
            self.dropped += 1
        self.waiting.append(message)
        self.size += len(message)
        self.idle.clear()
        self.news.set()

    def take(self) -> list[bytes]:
        batch: list[bytes] = []
        size = 0
        while self.waiting and len(batch) < BATCH_SIZE and (not batch or size + len(self.waiting[0]) <= BATCH_BYTES):
            size += len(self.waiting[0])
            batch.append(self.waiting.popleft())
        return batch


class Reporter:
    """Use as an async context manager; `ended` is done when it makes no sense to go on."""

    def __init__(
        self,
        base_url: str,
        run_id: str,
        token: str,
        *,
        redactor: Redactor | None = None,
        ca_file: str = "",
        patience_s: float = PATIENCE_S,
        batch_wait_s: float = BATCH_WAIT_S,
        held_bytes: int = HELD_BYTES,
    ) -> None:
        self._client = JobClient(base_url, run_id, token, ca_file=ca_file)
        self._redactor = redactor or Redactor()
        self._patience_s = patience_s
        self._batch_wait_s = batch_wait_s
        self._held_bytes = held_bytes
        self._taken = asyncio.Event()
        self._rollouts = _Lane("rollouts", "rollouts")
        self._logs = _Lane("logs", "lines", kept=LOG_LINES_KEPT)
        self._metrics = _Lane("metrics", "points")
        self._checkpoints = _Lane("checkpoints", "checkpoints")
        self._hurry = asyncio.Event()
        self._pumps: list[asyncio.Task[None]] = []
        self.ended: asyncio.Future[OsmosisError] | None = None
        self.every_s = 0.0
        """Least seconds that the platform wants between two heartbeats, or two reports."""

    async def __aenter__(self) -> "Reporter":
        self.ended = asyncio.get_running_loop().create_future()
        await self._client.open()
        self._pumps = [asyncio.create_task(self._pump(lane)) for lane in self._lanes]
        return self

    async def __aexit__(self, *_: object) -> None:
        await end_tasks(*self._pumps)
        await self._client.close()

    @property
    def _lanes(self) -> tuple[_Lane, ...]:
        return (self._rollouts, self._logs, self._metrics, self._checkpoints)

    def rollout(self, line: bytes) -> None:
        """Queue a finished rollout as its journal line (`Journal.line`): redacted JSON, safe on disk already."""
        if not self._is_over:
            self._rollouts.put(line.rstrip(b"\n"))

    @property
    def full(self) -> bool:
        waits = self._rollouts.size + self._metrics.size + self._checkpoints.size
        return waits > self._held_bytes and not self._is_over

    async def wait_for_room(self, stop: asyncio.Event) -> None:
        while self.full and not stop.is_set():
            self._taken.clear()
            await self._wait_for_any(self._taken, stop)

    async def _wait_for_any(self, *events: asyncio.Event) -> None:
        waiting: list[asyncio.Future[Any]] = [asyncio.ensure_future(event.wait()) for event in events]
        try:
            await asyncio.wait([*waiting, self._future()], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for future in waiting:
                future.cancel()

    def log(self, line: LogLine) -> None:
        """Queue a log line; when too many wait, the oldest are dropped and a line says how many."""
        self._put(self._logs, line)

    def metrics(self, points: Iterable[MetricPoint]) -> None:
        for point in points:
            self._put(self._metrics, point)

    def checkpoint(self, saved: CheckpointReport) -> None:
        self._put(self._checkpoints, saved)

    async def heartbeat(self, progress: Progress) -> HeartbeatReply | None:
        if self._is_over:
            return None
        try:
            body = await self._client.post("heartbeat", self._encode(progress), timeout_s=HEARTBEAT_TIMEOUT_S)
        except NetworkError:
            return None
        except OsmosisError as problem:
            self._end(problem)
            return None
        reply = HeartbeatReply.model_validate(body)
        self.every_s = min(max(0.0, reply.every_s), SILENT_AT_MOST_S)
        return reply

    async def list_stored_keys(self) -> set[Key]:
        body = await self._patiently("GET", "rollouts", None)
        return {(int(step), str(row_key), int(attempt)) for step, row_key, attempt in body.get("keys", ())}

    async def iterate_rollouts(self) -> AsyncIterator[dict[str, Any]]:
        offset = 0
        while True:
            path = f"rollouts?bodies=true&limit={PAGE}&offset={offset}"
            lines = (await self._patiently("GET", path, None)).get("lines", [])
            for line in lines:
                yield line
            if len(lines) < PAGE:
                return
            offset += len(lines)

    async def iterate_examples(self) -> AsyncIterator[StoredExample]:
        after = 0
        while True:
            lines = (await self._patiently("GET", f"examples?after={after}&limit={PAGE}", None)).get("lines", [])
            if not lines:
                return
            for line in lines:
                example = StoredExample.model_validate(line)
                after = example.place
                yield example

    async def flush(self) -> None:
        self._hurry.set()
        try:
            for lane in self._lanes:
                await self._wait_for_any(lane.idle)
        finally:
            self._hurry.clear()

    async def post(self, path: str, record: Record) -> None:
        await self._patiently("POST", path, self._encode(record))

    async def finish(self, result: JobResult) -> None:
        await self.flush()
        try:
            await self._patiently("POST", "finish", self._encode(result))
        except OsmosisError as problem:
            self._end(problem)
            raise

    @property
    def _is_over(self) -> bool:
        return self._future().done()

    @property
    def _is_mute(self) -> bool:
        return self._is_over and isinstance(self._future().result(), (LeaseLost, NetworkError))

    def _future(self) -> asyncio.Future[OsmosisError]:
        if self.ended is None:
            raise RuntimeError("the reporter is not open: use `async with`")
        return self.ended

    def _end(self, problem: OsmosisError) -> None:
        if not self._is_over:
            self._future().set_result(problem)

    def _encode(self, record: Record) -> bytes:
        line = record.model_dump_json(exclude_none=True).encode()
        if not self._redactor.touches(line):
            return line
        return orjson.dumps(self._redactor.data(orjson.loads(line)))

    def _put(self, lane: _Lane, record: Record) -> None:
        if not self._is_over:
            lane.put(self._encode(record))

    async def _pump(self, lane: _Lane) -> None:
        while not self._is_over:
            if not lane.waiting:
                lane.idle.set()
                lane.news.clear()
                await lane.news.wait()
            await self._wait_for_batch(lane)
            batch = lane.take()
            size = sum(map(len, batch))
            if lane.dropped:
                lost = LogLine(level="warning", step="job", message=f"{lane.dropped} log lines were dropped")
                batch.insert(0, self._encode(lost))
                lane.dropped = 0
            try:
                await self._send(lane, batch)
                lane.size -= size
                self._taken.set()
            except OsmosisError as problem:
                self._end(problem)
            except Exception as problem:  # noqa: BLE001 - border of a task nobody awaits: the job must hear of it
                self._end(InternalError(f"reporting failed: {type(problem).__name__}: {problem}"))

    async def _wait_for_batch(self, lane: _Lane) -> None:
        began = time.monotonic()
        while len(lane.waiting) < BATCH_SIZE and lane.size < BATCH_BYTES and not self._hurry.is_set():
            left = began + max(self._batch_wait_s, self.every_s) - time.monotonic()
            if left <= 0:
                return
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), min(left, self._batch_wait_s))

    async def _send(self, lane: _Lane, batch: list[bytes]) -> None:
        body = b'{"' + lane.key.encode() + b'":[' + b",".join(batch) + b"]}"
        try:
            await self._patiently("POST", lane.path, body)
        except OsmosisError as problem:
            if problem.details.get("status_code") != 413 or len(batch) == 1:
                raise
            middle = len(batch) // 2
            await self._send(lane, batch[:middle])
            await self._send(lane, batch[middle:])

    async def _patiently(self, method: str, path: str, body: bytes | None) -> dict[str, Any]:
        async def ask() -> dict[str, Any]:
            if self._is_mute:
                raise self._future().result()
            return await self._client.request(method, path, body)

        return await patiently(ask, patience_s=self._patience_s, pause=self._pause)

    async def _pause(self, seconds: float) -> None:
        await asyncio.wait({self._future()}, timeout=seconds)
        if self._is_mute:
            raise self._future().result()

    async def list_sizes(self, path: str) -> dict[str, int]:
        answer = await self._patiently("GET", path, None)
        return {str(path): int(size) for path, size in answer.get("files", {}).items()}

    async def send_artifact(self, rollout_id: str, path: str, file: ArtifactFile, offset: int) -> None:
        """Send one file of a rollout, from `offset` on. Raise `NetworkError` when it was cut off."""
        where = f"artifacts/{quote(rollout_id, safe='')}/{quote(path)}?size={file.size}&offset={offset}"
        await self._client.send(where, file.pieces(offset))

    async def list_folders(self) -> list[JobFolder]:
        return JobFolders.model_validate(await self._patiently("GET", "folders", None)).folders

    async def send(self, path: str, pieces: Iterator[bytes]) -> None:
        await self._client.send(path, pieces)

    async def save(self, path: str, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        await patiently(lambda: self._client.save(path, target), patience_s=self._patience_s, pause=self._pause)
