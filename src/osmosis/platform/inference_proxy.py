"""Questions to deployed models, passed on to the jobs that serve them, and the answers back, as they come.

One pool of connections for the process; no thread waits for a model. Who may ask, and whom, is decided before.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator

import aiohttp
import orjson
from starlette.responses import Response, StreamingResponse

from osmosis.errors import OsmosisError, RateLimited
from osmosis.platform.services.inference import LOADING_S, InferenceTarget, ModelLoading

log = logging.getLogger("osmosis.platform")

IN_FLIGHT = 1024
"""Questions to one deployment at once; its sampler takes as many as it has room for, the others wait there."""
CONNECT_S = 5.0
BUSY_S = 2
PASSED_ON = ("content-type", "retry-after", "x-should-retry")


class TookTooLong(OsmosisError):
    """No answer within the time limit."""

    code = "TIMEOUT"
    http_status = 504


class InferenceProxy:
    """The connections to the deployments of this machine; `app.state.inference`."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, connect=CONNECT_S)
        self._session: aiohttp.ClientSession | None = None
        self._in_flight: Counter[str] = Counter()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def ask(self, target: InferenceTarget, body: bytes) -> Response:
        """The answer's head, once it is there; its body follows as it comes. OsmosisError when nobody answers."""
        if self._in_flight[target.run_id] >= IN_FLIGHT:
            what = f"model {target.model} already has {IN_FLIGHT} requests in flight"
            raise RateLimited(what, hint="ask fewer at once", retry_after=BUSY_S)
        self._in_flight[target.run_id] += 1
        answer = None
        try:
            answer = await self._open(target, body)
            headers = {name: answer.headers[name] for name in PASSED_ON if name in answer.headers}
            whole = None if "event-stream" in headers.get("content-type", "") else await answer.read()
        except BaseException:
            self._let_go(target, answer)
            raise
        if whole is None:
            return StreamingResponse(self._pieces(target, answer), answer.status, headers)
        self._let_go(target, answer)
        return Response(whole, answer.status, headers)

    async def _open(self, target: InferenceTarget, body: bytes) -> aiohttp.ClientResponse:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(connector=connector, timeout=self._timeout, trust_env=False)
        headers = {"Authorization": f"Bearer {target.key}", "Content-Type": "application/json"}
        try:
            return await self._session.post(f"{target.url}/chat/completions", data=body, headers=headers)
        except (asyncio.TimeoutError, TimeoutError):
            raise TookTooLong(f"model {target.model} did not answer in time", hint="ask for fewer tokens") from None
        except aiohttp.ClientError as error:
            log.warning("deployment %s does not answer: %s", target.model, error)
            what = f"model {target.model} does not answer: it is being started again"
            raise ModelLoading(what, retry_after=LOADING_S) from None

    async def _pieces(self, target: InferenceTarget, answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        try:
            async for piece in answer.content.iter_any():
                yield piece
        except (aiohttp.ClientError, asyncio.TimeoutError, TimeoutError) as error:
            log.warning("the answer of deployment %s broke off: %s", target.model, error)
            broken = error_body(OsmosisError(f"the answer of model {target.model} broke off"), "server_error")
            yield b"data: " + orjson.dumps(broken) + b"\n\n"
        finally:
            self._let_go(target, answer)

    def _let_go(self, target: InferenceTarget, answer: aiohttp.ClientResponse | None) -> None:
        self._in_flight[target.run_id] -= 1
        if not self._in_flight[target.run_id]:
            del self._in_flight[target.run_id]
        if answer is not None:
            answer.close()  # one that was not read to its end ends the question


def error_body(error: OsmosisError, kind: str) -> dict[str, object]:
    """An error in the shape that OpenAI clients show."""
    message = f"{error.message}: {error.hint}" if error.hint else error.message
    code = str(error.details.get("code", error.code)).lower()
    return {"error": {"message": message, "type": kind, "code": code, "param": None}}
