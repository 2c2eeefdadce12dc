"""How one rollout is started on a rollout server and its end awaited, once per generation of the protocol. A driver
raises `RolloutLost` with phase and category when the server gave no result; a result of any kind is returned.
"""

from __future__ import annotations

import asyncio
import math
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol
from urllib.parse import quote, urlsplit

import aiohttp
import orjson
from pydantic import ValidationError as BadShape

from osmosis.base.backoff import backoff_delay, parse_retry_after
from osmosis.engine.in_process import DEFAULT_MAX_TOKENS_TOTAL
from osmosis.errors import ValidationError
from osmosis.llm.connections import Connections
from osmosis.llm.wire import exchange
from osmosis.records.base import Record
from osmosis.records.dataset import Row
from osmosis.records.loop_request import LoopStatus, RolloutRequest
from osmosis.records.plan import EvalPlan
from osmosis.records.rollout import Category, Failure, Phase
from osmosis.records.wire import LEASE_HEADER, RolloutAccepted, RolloutInit, RolloutState04, ServerHealth
from osmosis.records.wire_sample import WireSample

from .model_endpoint import RolloutEndpoint

Generation = Literal["0.2", "0.3", "0.4"]

MAX_RETRY_AFTER_S = 60.0
REFUSED = (aiohttp.ClientConnectorError, ConnectionRefusedError)
"""Nobody listens."""
_PATH = "/:@+=%-._~"
_LINE_ENDS = re.compile(r"[\r\n]")
LOOK_S = 5.0
_WIRE_CATEGORIES = {
    "timeout": Category.TIMEOUT,
    "validation_error": Category.BAD_REQUEST,
    "http_error": Category.SERVER_ERROR,
    "agent_error": Category.AGENT_ERROR,
}


class RolloutLost(Exception):
    """The server refused the rollout, died or fell silent."""

    def __init__(self, category: Category, message: str, *, phase: Phase = Phase.SETUP, fix: str | None = None) -> None:
        super().__init__(message)
        self.failure = Failure(phase=phase, category=category, message=message, fix=fix)


@dataclass
class ServerResult:
    """What the server said in the end."""

    failure: Failure | None = None
    sample: WireSample | None = None
    finish_reason: str | None = None
    metrics: dict[str, float] | None = None


class Driver(Protocol):
    """Starts a rollout and returns its end; `cancel` is best effort."""

    tells_limits: bool
    """Whether the server is given the agent's limit."""

    async def run(self, endpoint: RolloutEndpoint, row: Row) -> ServerResult: ...

    async def agent_runs(self, endpoint: RolloutEndpoint) -> bool | None:
        """Whether the agent is at work now; None = it waits in the server's queue, False = it is done."""

    async def cancel(self, rollout_id: str) -> None: ...


class ServerClient:
    """Requests to one rollout server over kept-alive connections; over `session` where they have to be encrypted."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        api_key: str | None,
        timeout_s: float,
        *,
        connecting: Callable[[], socket.socket] | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._session = session
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            if "\r" in api_key or "\n" in api_key:
                raise ValidationError("the rollout server's key contains a line break", hint="check its variable")
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._timeout_s = timeout_s
        parts = urlsplit(self.url)
        self._host, self._prefix = parts.netloc, parts.path
        self._plain: Connections | None = None
        if parts.scheme == "http" and parts.hostname and not parts.username:
            # Each rollout that runs waits on a connection of its own.
            self._plain = Connections(parts.hostname, parts.port or 80, at_once=math.inf, connecting=connecting)

    def close(self) -> None:
        """Of what is idle."""
        if self._plain is not None:
            self._plain.close()

    async def ask(
        self,
        method: str,
        path: str,
        body: Record | dict[str, object] | None = None,
        *,
        wait_s: float = 0.0,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, bytes, float | None]:
        """Status, body and `Retry-After` of one exchange; `wait_s` is added to the time limit of a long poll."""
        data: bytes | None = None
        if body is not None:
            data = body.model_dump_json(exclude_none=True).encode() if isinstance(body, Record) else orjson.dumps(body)
        if self._plain is not None:
            request = self._request(method, path, data or b"", headers or {})
            found = await exchange(self._plain, request, self._timeout_s + wait_s)
            return found.status, found.body, parse_retry_after(found.retry_after)
        timeout = aiohttp.ClientTimeout(total=self._timeout_s + wait_s)
        async with self._session.request(
            method, self.url + path, data=data, headers={**self._headers, **(headers or {})}, timeout=timeout
        ) as reply:
            return reply.status, await reply.read(), parse_retry_after(reply.headers.get("Retry-After"))

    def _request(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> bytes:
        # The server names ids and leases: nothing of them is taken for more of the head.
        lines = [f"{method} {quote(self._prefix + path, safe=_PATH)} HTTP/1.1", f"Host: {self._host}"]
        lines += [f"{name}: {_LINE_ENDS.sub('', value)}" for name, value in {**self._headers, **headers}.items()]
        lines.append(f"Content-Length: {len(body)}\r\n\r\n")
        return "\r\n".join(lines).encode() + body

    async def submit(self, path: str, body: Record) -> bytes:
        """POST until accepted: waits through 429 and 503, tries transport errors twice; `RolloutLost` otherwise."""
        transport_errors = 0
        while True:
            try:
                status, answer, asked = await self.ask("POST", path, body)
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as exc:
                transport_errors += 1
                if transport_errors > 2:
                    raise RolloutLost(*unreachable(self.url, exc)) from exc
                await asyncio.sleep(0.25)
                continue
            if 200 <= status < 300:
                return answer
            if status in (429, 503):
                await asyncio.sleep(min(max(asked if asked is not None else 1.0, 0.05), MAX_RETRY_AFTER_S))
                continue
            if status == 409 and transport_errors:
                raise RolloutLost(Category.CONNECTION, "the server accepted the rollout, but its answer was lost")
            raise refused(path, status, answer)

    async def look(self, path: str) -> dict[str, Any] | None:
        """A GET that may fail: the JSON object, None when there is none."""
        try:
            status, body, _ = await asyncio.wait_for(self.ask("GET", path), LOOK_S)
            found = orjson.loads(body) if status == 200 else None
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError, orjson.JSONDecodeError):
            return None
        return found if isinstance(found, dict) else None

    async def cancel(self, rollout_id: str) -> None:
        await self.ask("POST", "/rollout/cancel", {"ids": [rollout_id]})


class Driver03:
    """Callbacks: the model endpoint hears the end."""

    tells_limits = True

    def __init__(self, client: ServerClient, plan: EvalPlan) -> None:
        self._client = client
        self._plan = plan

    async def run(self, endpoint: RolloutEndpoint, row: Row) -> ServerResult:
        init = rollout_init(endpoint, row, self._plan)
        init.controller_api_key = endpoint.callback_key
        init.completion_callback_url = endpoint.completion_callback_url
        init.grader_callback_url = endpoint.grader_callback_url
        await self._client.submit("/rollout", init)
        await endpoint.result()
        completion, grader = endpoint.completion, endpoint.grader
        if completion is not None and completion.status != "success":
            sample = grader.sample if grader else None
            failure = completion.failure or failure_from_wire(
                completion.err_category, completion.err_message, completion.status
            )
            return ServerResult(failure, sample)
        if grader is None or grader.status == "success":
            return ServerResult(None, grader.sample if grader else None)
        if grader.failure is not None:
            return ServerResult(grader.failure, grader.sample)
        failure = failure_from_wire(grader.err_category, grader.err_message, "failure")
        if completion is not None:  # the agent's own success came first, so this is the grader's failure
            failure.phase = Phase.SCORE
            if failure.category is Category.AGENT_ERROR:
                failure.category = Category.SCORE_ERROR
        return ServerResult(failure, grader.sample)

    async def agent_runs(self, endpoint: RolloutEndpoint) -> bool | None:
        if endpoint.completion is not None:
            return False
        if endpoint.calls:
            return True
        health = await self._client.look("/health")  # this generation tells no states: a queue is all there is to see
        return None if ((health or {}).get("concurrency") or {}).get("queued") else True

    async def cancel(self, rollout_id: str) -> None:
        await self._client.cancel(rollout_id)


class Driver04:
    """Polling: results are read under the lease."""

    tells_limits = True

    def __init__(self, client: ServerClient, plan: EvalPlan) -> None:
        self._client = client
        self._plan = plan

    async def run(self, endpoint: RolloutEndpoint, row: Row) -> ServerResult:
        answer = await self._client.submit("/rollout", rollout_init(endpoint, row, self._plan))
        try:
            accepted = RolloutAccepted.model_validate_json(answer)
        except BadShape as exc:
            raise RolloutLost(
                Category.BAD_RESPONSE, "the server's answer to POST /rollout is not a generation 0.4 answer"
            ) from exc
        loop = asyncio.get_running_loop()
        while True:
            asked = loop.time()
            state = await self._read(accepted)
            # A read that came back before its time tells of a change: the rollout was queued until now.
            changed = endpoint.state == "queued" or loop.time() - asked < 0.9 * accepted.result_wait_timeout_sec
            if state.status == "running" and endpoint.state != "running" and changed and endpoint.on_begin is not None:
                endpoint.on_begin()
            endpoint.tell(state.status)
            if state.status == "success":
                return ServerResult(None, state.sample)
            if state.status in ("failure", "cancelled"):
                failure = state.failure or failure_from_wire(state.err_category, state.err_message, state.status)
                return ServerResult(failure, state.sample)

    async def agent_runs(self, endpoint: RolloutEndpoint) -> bool | None:
        state = (await self._client.look(f"/rollout/{endpoint.rollout_id}/status") or {}).get("status")
        return None if state == "queued" else state in (None, "running", "unknown")

    async def cancel(self, rollout_id: str) -> None:
        await self._client.cancel(rollout_id)

    async def _read(self, accepted: RolloutAccepted) -> RolloutState04:
        """One state; errors are tried again while the lease lasts."""
        loop = asyncio.get_running_loop()
        lease_ends = loop.time() + accepted.polling_lease_timeout_sec
        path = f"/rollout/{accepted.rollout_id}/result"
        tries = 0
        while True:
            tries += 1
            lost: RolloutLost
            try:
                status, body, _ = await self._client.ask(
                    "GET",
                    path,
                    wait_s=accepted.result_wait_timeout_sec,
                    headers={LEASE_HEADER: accepted.polling_lease_token},
                )
                if status == 200:
                    return RolloutState04.model_validate_json(body)
                if status == 404:
                    raise RolloutLost(
                        Category.SERVER_DIED,
                        f"the rollout server at {self._client.url} "
                        "does not know the rollout any more: it was restarted",
                    )
                lost = refused(path, status, body)
                if status < 500 and status != 429:
                    raise lost
            except BadShape as exc:
                raise RolloutLost(Category.BAD_RESPONSE, f"GET {path} did not answer with a rollout state") from exc
            except REFUSED as exc:
                lost = RolloutLost(*unreachable(self._client.url, exc))
                if tries > 2:
                    raise lost from exc
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as exc:
                lost = RolloutLost(*unreachable(self._client.url, exc))
            delay = backoff_delay(tries, base_s=0.25, max_s=8.0)
            if loop.time() + delay > lease_ends:
                raise lost
            await asyncio.sleep(delay)


class Driver02:
    """Init, then the completed callback; tools are known from the answer to init."""

    tells_limits = False

    def __init__(self, client: ServerClient, plan: EvalPlan, gate_url: str) -> None:
        self._client = client
        self._plan = plan
        self._gate_url = gate_url

    async def run(self, endpoint: RolloutEndpoint, row: Row) -> ServerResult:
        endpoint.expect_tools()
        request = RolloutRequest(
            rollout_id=endpoint.rollout_id,
            server_url=self._gate_url,
            messages=row.messages(),
            completion_params=dict(self._plan.model.params),
            max_turns=self._plan.max_turns,
            max_tokens_total=self._plan.max_tokens_total or DEFAULT_MAX_TOKENS_TOTAL,
            metadata={**row.data, **_place(endpoint)},
            api_key=endpoint.bearer,
        )
        answer = await self._client.submit("/v1/rollout/init", request)
        try:
            tools = orjson.loads(answer).get("tools")
        except (orjson.JSONDecodeError, AttributeError) as exc:
            raise RolloutLost(Category.BAD_RESPONSE, "the answer to /v1/rollout/init is not an object") from exc
        endpoint.know_tools(tools)
        await endpoint.result()
        response = endpoint.response
        assert response is not None
        failure = None
        if response.status is LoopStatus.ERROR:
            failure = response.failure or failure_from_wire("agent_error", response.error_message, "failure")
        metrics = response.metrics.model_dump() if response.metrics else {}
        sample = WireSample(
            messages=response.final_messages, reward=response.reward, extra_fields=response.extra_fields
        )
        return ServerResult(failure, sample, finish_reason=response.finish_reason, metrics=metrics)

    async def agent_runs(self, endpoint: RolloutEndpoint) -> bool | None:
        """This generation keeps limits of its own and tells nothing."""
        return True

    async def cancel(self, rollout_id: str) -> None:
        """This generation has no way to say so; the server's own limits end the rollout."""


def generation_of(health: bytes) -> tuple[Generation, int | None]:
    """Which generation a `/health` answer belongs to (servers that speak 0.3 and 0.4 are polled), and how many
    rollouts the server runs at once."""
    try:
        body = orjson.loads(health)
        parsed = ServerHealth.model_validate(body)
    except (orjson.JSONDecodeError, BadShape) as exc:
        raise RolloutLost(
            Category.BAD_RESPONSE, "GET /health did not answer with the health of a rollout server"
        ) from exc
    capacity = parsed.concurrency.max_concurrent
    if "agent_loop" in body and "lifecycle" not in body:
        return "0.2", capacity
    return "0.4" if parsed.process_id is not None or parsed.lifecycle is not None else "0.3", capacity


def rollout_init(endpoint: RolloutEndpoint, row: Row, plan: EvalPlan) -> RolloutInit:
    """What every `POST /rollout` says. The metadata is the row's own, else the whole row; what only an agent loop
    understands travels in `extra_fields`."""
    agent_s = plan.timeouts.agent_s
    return RolloutInit(
        initial_messages=row.messages(),
        label=row.ground_truth,
        metadata=row.metadata if row.metadata is not None else dict(row.data),
        rollout_id=endpoint.rollout_id,
        chat_completions_url=endpoint.chat_completions_url,
        llm_api_key=endpoint.bearer,
        # Waits for rate limits are not the agent's time, so its limit is kept on our side: this is the backstop.
        agent_timeout_sec=None if agent_s is None else agent_s + plan.retry.rate_limit_budget_s,
        grader_timeout_sec=plan.timeouts.score_s,
        extra_fields={
            "max_turns": plan.max_turns,
            "max_tokens_total": plan.max_tokens_total or DEFAULT_MAX_TOKENS_TOTAL,
            "metadata": _place(endpoint),
        },
    )


def _place(endpoint: RolloutEndpoint) -> dict[str, Any]:
    return {"row_index": endpoint.row_index, "execution_mode": "eval", "run_index": endpoint.attempt}


def failure_from_wire(category: str | None, message: str | None, status: str) -> Failure:
    """The failure behind the two keys that every server sends."""
    known = Category.CANCELLED if status == "cancelled" else _WIRE_CATEGORIES.get(category or "", Category.AGENT_ERROR)
    return Failure(phase=Phase.AGENT, category=known, message=message or f"the rollout server said only {status!r}")


def unreachable(url: str, exc: BaseException) -> tuple[Category, str]:
    if isinstance(exc, REFUSED):
        return Category.SERVER_DIED, f"the rollout server at {url} no longer accepts connections"
    if isinstance(exc, asyncio.TimeoutError):
        return Category.TIMEOUT, f"the rollout server at {url} did not answer in time"
    return Category.CONNECTION, f"the connection to the rollout server at {url} broke: {exc or type(exc).__name__}"


def refused(path: str, status: int, body: bytes) -> RolloutLost:
    said = body[:500].decode("utf-8", "replace").strip()
    category = {401: Category.AUTH, 403: Category.AUTH, 429: Category.RATE_LIMIT}.get(status, Category.BAD_REQUEST)
    if status >= 500:
        category = Category.SERVER_ERROR
    fix = "give the rollout server's API key" if status == 401 else None
    return RolloutLost(category, f"the rollout server answered {path} with {status}: {said}", fix=fix)
