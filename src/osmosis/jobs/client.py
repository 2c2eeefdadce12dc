import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import orjson

from osmosis import errors
from osmosis.base.net import backoff_delay, is_loopback, parse_retry_after

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
