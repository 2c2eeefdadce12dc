"""HTTP of the job API (`/api/jobs/<run>/...`): one request, its answer or a typed error. No retries, no queue.

`NetworkError` means that the same request may succeed later; every other error is final.
"""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import orjson

from osmosis.base.backoff import parse_retry_after
from osmosis.errors import AuthRequired, Forbidden, LeaseLost, NetworkError, NotFound, OsmosisError, from_wire

TIMEOUT_S = 60.0
TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})


class JobClient:
    """Speaks for one run, with its lease token."""

    def __init__(self, base_url: str, run_id: str, token: str) -> None:
        self._base = f"{base_url.rstrip('/')}/api/jobs/{run_id}"
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        # The platform is addressed directly: a proxy in the environment is for the rollout's own traffic.
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S), trust_env=False)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def post(self, path: str, body: bytes, *, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
        """`request` with POST."""
        return await self.request("POST", path, body, timeout_s=timeout_s)

    async def request(
        self, method: str, path: str, body: bytes | None, *, timeout_s: float = TIMEOUT_S
    ) -> dict[str, Any]:
        """The JSON object of the answer; of newline-delimited JSON, its `lines`.

        Raises `NetworkError`, `LeaseLost` or what the platform said.
        """
        if self._session is None:
            raise RuntimeError("the client is not open")
        try:
            async with self._session.request(
                method,
                f"{self._base}/{path}",
                data=body,
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=timeout_s),
            ) as response:
                text = await response.read()
                status, retry_after = response.status, response.headers.get("Retry-After")
                content_type = response.content_type
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as problem:
            raise NetworkError(f"{self._base}: {type(problem).__name__}: {problem}") from problem
        if status < 400 and content_type == "application/x-ndjson":
            return {"lines": [orjson.loads(line) for line in text.splitlines() if line]}
        answer = _object(text)
        if status < 400:
            return answer
        if status in TRY_AGAIN:
            raise NetworkError(f"{self._base}/{path}: HTTP {status}", retry_after=parse_retry_after(retry_after))
        raise _final(status, answer)


def _final(status: int, answer: dict[str, Any]) -> OsmosisError:
    problem = from_wire(status, answer)
    if isinstance(problem, LeaseLost):
        return problem
    if isinstance(problem, (AuthRequired, Forbidden, NotFound)):
        # The token is no longer this run's lease, or the run was deleted: either way it is not ours.
        return LeaseLost(problem.message, status_code=status)
    return problem


def _object(text: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}
