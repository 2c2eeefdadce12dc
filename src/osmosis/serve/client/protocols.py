"""How a client starts a rollout on a rollout server and waits for its end, in generations 0.3 and 0.4 of the protocol;
generation 0.2 is `osmosis.compat.client`. A protocol raises `RolloutLost` with phase and category when the server gave
no result; a result of any kind is returned."""

import asyncio
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib import import_module
from typing import Literal
from urllib.parse import quote

import aiohttp
import orjson
from pydantic import ValidationError as BadShape
from yarl import URL

from osmosis.base.jsonable import JsonObject
from osmosis.base.net import backoff_delay, parse_retry_after
from osmosis.engine.agent import DEFAULT_MAX_TOKENS_TOTAL
from osmosis.errors import ValidationError
from osmosis.llm.http import read_body
from osmosis.records.base import Record
from osmosis.records.protocol import messages as wire
from osmosis.records.run.plan import EvalPlan
from osmosis.records.run.rollout import Category, Failure, Phase
from osmosis.records.run.rows import Row
from osmosis.serve.client.rollout_endpoint import RolloutEndpoint

Generation = Literal["0.2", "0.3", "0.4"]

MAX_RETRY_AFTER_S = 60.0
REFUSED = (aiohttp.ClientConnectorError, ConnectionRefusedError)
_LINE_ENDS = re.compile(r"[\r\n]")
LOOK_S = 5.0
_WIRE_CATEGORIES = {
    "timeout": Category.TIMEOUT,
    "validation_error": Category.BAD_REQUEST,
    "http_error": Category.SERVER_ERROR,
    "agent_error": Category.AGENT_ERROR,
}


class RolloutLost(Exception):
    def __init__(self, category: Category, message: str, *, phase: Phase = Phase.SETUP, fix: str | None = None) -> None:
        super().__init__(message)
        self.failure = Failure(phase=phase, category=category, message=message, fix=fix)


@dataclass
class ServerResult:
    failure: Failure | None = None
    sample: wire.WireSample | None = None
    finish_reason: str | None = None
    metrics: dict[str, float] | None = None


class ServerClient:
    def __init__(self, session: aiohttp.ClientSession, url: str, api_key: str | None, timeout_s: float) -> None:
        self.url = url.rstrip("/")
        self._session = session
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            if "\r" in api_key or "\n" in api_key:
                raise ValidationError("the rollout server's key contains a line break", hint="check its variable")
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._timeout_s = timeout_s

    async def ask(
        self,
        method: str,
        path: str,
        body: Record | dict[str, object] | None = None,
        *,
        wait_s: float = 0.0,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, bytes, float | None]:
        """Make one request; return status, body and `Retry-After`. A long poll may take `wait_s` more."""
        if isinstance(body, Record):
            content: bytes | None = body.model_dump_json(exclude_none=True).encode()
        else:
            content = None if body is None else orjson.dumps(body)
        # The server names ids and leases: they must not add to the path or the headers.
        url = URL(self.url + quote(path, safe="/:@+=%-._~"), encoded=True)
        more_headers = {name: _LINE_ENDS.sub("", value) for name, value in (headers or {}).items()}
        timeout = aiohttp.ClientTimeout(total=self._timeout_s + wait_s)
        async with self._session.request(
            method, url, data=content, headers={**self._headers, **more_headers}, timeout=timeout, allow_redirects=False
        ) as reply:
            return reply.status, (await read_body(reply)), parse_retry_after(reply.headers.get("Retry-After"))

    async def submit(self, path: str, body: Record) -> bytes:
        """POST until accepted: wait through 429 and 503, try transport errors twice, else raise `RolloutLost`."""
        transport_errors = 0
        while True:
            try:
                status, answer, retry_after_s = await self.ask("POST", path, body)
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as exc:
                transport_errors += 1
                if transport_errors > 2:
                    raise RolloutLost(*lost_connection(self.url, exc)) from exc
                await asyncio.sleep(0.25)
                continue
            if 200 <= status < 300:
                return answer
            if status in (429, 503):
                await asyncio.sleep(min(max(1.0 if retry_after_s is None else retry_after_s, 0.05), MAX_RETRY_AFTER_S))
                continue
            if status == 409 and transport_errors:
                raise RolloutLost(Category.CONNECTION, "the server accepted the rollout, but its answer was lost")
            raise lost_by_refusal(path, status, answer)

    async def find_object(self, path: str) -> JsonObject | None:
        try:
            status, body, _ = await asyncio.wait_for(self.ask("GET", path), LOOK_S)
            answer = orjson.loads(body) if status == 200 else None
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError, orjson.JSONDecodeError):
            return None
        return answer if isinstance(answer, dict) else None


@dataclass(eq=False, repr=False)
class ServerProtocol(ABC):
    _client: ServerClient
    _plan: EvalPlan
    sends_limits = True

    @abstractmethod
    async def run(self, endpoint: RolloutEndpoint, row: Row) -> ServerResult: ...

    @abstractmethod
    async def agent_runs(self, endpoint: RolloutEndpoint) -> bool | None:
        """Return whether the agent is at work now; None while it waits in the server's queue, False once it is done."""

    async def cancel(self, rollout_id: str) -> None:
        await self._client.ask("POST", "/rollout/cancel", {"ids": [rollout_id]})


class CallbackProtocol(ServerProtocol):
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
        # This generation tells no states: a queue is all there is to see.
        health = await self._client.find_object("/health")
        return None if ((health or {}).get("concurrency") or {}).get("queued") else True


class PollingProtocol(ServerProtocol):
    async def run(self, endpoint: RolloutEndpoint, row: Row) -> ServerResult:
        answer = await self._client.submit("/rollout", rollout_init(endpoint, row, self._plan))
        try:
            accepted = wire.RolloutAccepted.model_validate_json(answer)
        except BadShape as exc:
            raise RolloutLost(
                Category.BAD_RESPONSE, "the server's answer to POST /rollout is not a generation 0.4 answer"
            ) from exc
        loop = asyncio.get_running_loop()
        while True:
            asked_at = loop.time()
            state = await self._read(accepted)
            # A read that came back before its time tells of a change: the rollout was queued until now.
            changed = endpoint.state == "queued" or loop.time() - asked_at < 0.9 * accepted.result_wait_timeout_sec
            if state.status == "running" and endpoint.state != "running" and changed and endpoint.on_begin is not None:
                endpoint.on_begin()
            endpoint.report_state(state.status)
            if state.status == "success":
                return ServerResult(None, state.sample)
            if state.status in ("failure", "cancelled"):
                failure = state.failure or failure_from_wire(state.err_category, state.err_message, state.status)
                return ServerResult(failure, state.sample)

    async def agent_runs(self, endpoint: RolloutEndpoint) -> bool | None:
        state = (await self._client.find_object(f"/rollout/{endpoint.rollout_id}/status") or {}).get("status")
        return None if state == "queued" else state in (None, "running", "unknown")

    async def _read(self, accepted: wire.RolloutAccepted) -> wire.RolloutState04:
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
                    headers={wire.LEASE_HEADER: accepted.polling_lease_token},
                )
                if status == 200:
                    return wire.RolloutState04.model_validate_json(body)
                if status == 404:
                    raise RolloutLost(
                        Category.SERVER_DIED,
                        f"the rollout server at {self._client.url} "
                        "does not know the rollout any more: it was restarted",
                    )
                lost = lost_by_refusal(path, status, body)
                if status < 500 and status != 429:
                    raise lost
            except BadShape as exc:
                raise RolloutLost(Category.BAD_RESPONSE, f"GET {path} did not answer with a rollout state") from exc
            except REFUSED as exc:
                lost = RolloutLost(*lost_connection(self._client.url, exc))
                if tries > 2:
                    raise lost from exc
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as exc:
                lost = RolloutLost(*lost_connection(self._client.url, exc))
            delay = backoff_delay(tries, base_s=0.25, max_s=8.0)
            if loop.time() + delay > lease_ends:
                raise lost
            await asyncio.sleep(delay)


def open_protocol(generation: Generation, client: ServerClient, plan: EvalPlan, proxy_url: str) -> ServerProtocol:
    if generation == "0.2":
        # Generation 0.2 is above this package and loaded only where it is spoken.
        protocol: ServerProtocol = import_module("osmosis.compat.client").AgentLoopProtocol(client, plan, proxy_url)
        return protocol
    return PollingProtocol(client, plan) if generation == "0.4" else CallbackProtocol(client, plan)


def generation_of(health: bytes) -> tuple[Generation, int | None]:
    """Return a server's generation by its `/health`, and how many rollouts it runs at once; 0.4 wins over 0.3."""
    try:
        body = orjson.loads(health)
        parsed = wire.ServerHealth.model_validate(body)
    except (orjson.JSONDecodeError, BadShape) as exc:
        raise RolloutLost(
            Category.BAD_RESPONSE, "GET /health did not answer with the health of a rollout server"
        ) from exc
    capacity = parsed.concurrency.max_concurrent
    if "agent_loop" in body and "lifecycle" not in body:
        return "0.2", capacity
    return "0.4" if parsed.process_id is not None or parsed.lifecycle is not None else "0.3", capacity


def rollout_init(endpoint: RolloutEndpoint, row: Row, plan: EvalPlan) -> wire.RolloutInit:
    """Build the body of `POST /rollout`: the metadata is the row's own, else the whole row."""
    agent_s = plan.timeouts.agent_s
    return wire.RolloutInit(
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
            "metadata": row_position(endpoint),
        },
    )


def row_position(endpoint: RolloutEndpoint) -> JsonObject:
    assert endpoint.model is not None
    task = endpoint.model.task
    return {"row_index": task.row.index, "execution_mode": "eval", "run_index": task.attempt}


def failure_from_wire(category: str | None, message: str | None, status: str) -> Failure:
    known_category = (
        Category.CANCELLED if status == "cancelled" else _WIRE_CATEGORIES.get(category or "", Category.AGENT_ERROR)
    )
    return Failure(
        phase=Phase.AGENT, category=known_category, message=message or f"the rollout server said only {status!r}"
    )


def lost_connection(url: str, exc: BaseException) -> tuple[Category, str]:
    if isinstance(exc, REFUSED):
        return Category.SERVER_DIED, f"the rollout server at {url} no longer accepts connections"
    if isinstance(exc, asyncio.TimeoutError):
        return Category.TIMEOUT, f"the rollout server at {url} did not answer in time"
    return Category.CONNECTION, f"the connection to the rollout server at {url} broke: {exc or type(exc).__name__}"


def lost_by_refusal(path: str, status: int, body: bytes) -> RolloutLost:
    text = body[:500].decode("utf-8", "replace").strip()
    category = {401: Category.AUTH, 403: Category.AUTH, 429: Category.RATE_LIMIT}.get(status, Category.BAD_REQUEST)
    if status >= 500:
        category = Category.SERVER_ERROR
    fix = "give the rollout server's API key" if status == 401 else None
    return RolloutLost(category, f"the rollout server answered {path} with {status}: {text}", fix=fix)
