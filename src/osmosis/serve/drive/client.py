"""Drives a rollout server as a `RolloutFn`: one task in, one `Rollout` out, whatever happens on the other side.
The generation is found out from `/health`; the model is served through a model proxy, which also knows usage and the
true cause of model failures. A dead server ends all waiting at once, a silent one is bounded. Nothing is scored here.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Literal

import aiohttp

from osmosis.base.tasks import end
from osmosis.engine.clock import Waits
from osmosis.engine.ended import REWARD, Ended, add_sample, numbers, rollout_of, tool_results
from osmosis.engine.rollout_model import waiting
from osmosis.errors import AuthRequired, NetworkError
from osmosis.records.base import utc_now
from osmosis.records.plan import EvalPlan
from osmosis.records.rollout import Category, Phase, Rollout, Score
from osmosis.sdk.classify import overrun, true_cause
from osmosis.serve.http_pool import open_session

from .drivers import (
    REFUSED,
    Driver,
    Driver02,
    Driver03,
    Driver04,
    Generation,
    RolloutLost,
    ServerClient,
    ServerResult,
    generation_of,
)
from .model_endpoint import RolloutEndpoint
from .traingate import TrainGate

if TYPE_CHECKING:
    from osmosis.engine.task import RolloutFn, Task

REQUEST_TIMEOUT_S = 30.0
GRACE_S = 60.0
UNLIMITED_S = 3600.0
Passed = Literal["agent", "whole"]

WATCH_EVERY_S = 1.0
PROXY_SAYS_GONE = frozenset({502, 503, 504})
_NEEDS_KEY = ("/rollout/key-check/status", "/platform/health")
DEAD_AFTER = 3
"""Refused connections in a row, one per watch, until a server counts as dead."""


@dataclass(frozen=True, slots=True)
class ServerAt:
    """Where a rollout server is, and how it is spoken to."""

    url: str
    api_key: str | None = field(default=None, repr=False)
    gate_url: str = ""
    """Where its rollouts find the gate; empty: where all find it."""
    generation: Generation | None = None
    """Overrules what `/health` says."""
    connecting: Callable[[], socket.socket] | None = None
    """Makes the sockets that reach a server in a network of its own."""
    silent_s: float | None = None
    """On another machine, or behind a proxy: it also counts as dead when it was not heard for so long, and when the
    proxy says that it is gone. None: only when it refuses connections."""


@asynccontextmanager
async def served(
    server_url: str,
    gate: TrainGate,
    plan: EvalPlan,
    *,
    api_key: str | None = None,
    generation: Generation | None = None,
    died: Callable[[], Awaitable[object]] | None = None,
    connecting: Callable[[], socket.socket] | None = None,
) -> AsyncIterator[RolloutFn]:
    """A `RolloutFn` over the rollout server at `server_url`; `gate` must be started.

    `generation` overrules what `/health` says. `died` (for example `RolloutServerProcess.wait_died`) returns when
    the server's process has ended; without it, a server that refuses connections for some seconds counts as dead.
    `connecting` makes the sockets that reach a server in a network of its own.
    `NetworkError` when there is no healthy server to begin with.
    """
    at = ServerAt(server_url, api_key, generation=generation, connecting=connecting)
    async with connected(at, gate, plan, died=died) as server:
        yield server.rollout


@asynccontextmanager
async def connected(
    at: ServerAt, gate: TrainGate, plan: EvalPlan, *, died: Callable[[], Awaitable[object]] | None = None
) -> AsyncIterator[ServedRollouts]:
    """As `served`, for who also wants to know how many rollouts the server takes, and when it is dead."""
    async with open_session(connecting=at.connecting) as session:
        client = ServerClient(session, at.url, at.api_key, REQUEST_TIMEOUT_S, connecting=at.connecting)
        found, capacity = await _detect(client)
        spoken = at.generation or found
        driver: Driver
        if spoken == "0.2":
            driver = Driver02(client, plan, at.gate_url or gate.base_url)
        else:
            driver = Driver04(client, plan) if spoken == "0.4" else Driver03(client, plan)
        server = ServedRollouts(driver, gate, plan, at, capacity)
        watcher = asyncio.create_task(server.watch_process(died) if died else server.watch_health(client))
        try:
            yield server
        finally:
            await end(watcher)
            await server.settle()
            client.close()


async def check_key(server_url: str, api_key: str | None) -> None:
    """Asks the server something that needs its key; `AuthRequired` when the key is not the one it wants.

    A server of generation 0.2 knows only the second path. Everything else (a server without a key, none at all) is
    for `served` to find out.
    """
    async with open_session() as session:
        client = ServerClient(session, server_url, api_key, REQUEST_TIMEOUT_S)
        try:
            for path in _NEEDS_KEY:
                status, _, _ = await client.ask("GET", path)
                if status != 404:
                    break
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError):
            return
        finally:
            client.close()
    if status in (401, 403):
        what = "requires a key" if api_key is None else "rejected this key"
        raise AuthRequired(
            f"the rollout server at {server_url} {what} ({status})",
            hint="--server-key-env NAME names the variable that holds it",
        )


async def _detect(client: ServerClient) -> tuple[Generation, int | None]:
    """The generation, and how many rollouts the server runs at once (None: it does not say)."""
    try:
        status, body, _ = await client.ask("GET", "/health")
        if status != 200:
            raise NetworkError(
                f"{client.url}/health answered {status}", hint="check that this is the URL of a rollout server"
            )
        return generation_of(body)
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as exc:
        raise NetworkError(
            f"no rollout server answers at {client.url}: {exc or type(exc).__name__}",
            hint="start it, or check host and port",
        ) from exc
    except RolloutLost as exc:
        raise NetworkError(f"{client.url}: {exc}", hint="check that this is the URL of a rollout server") from exc


class ServedRollouts:
    """The rollouts of one server."""

    def __init__(self, driver: Driver, gate: TrainGate, plan: EvalPlan, at: ServerAt, capacity: int | None) -> None:
        self.capacity = capacity
        """How many it runs at once; None: it does not say."""
        self.dead = asyncio.Event()
        # More than the server runs at once would wait there, on the clock of their time limits; here they wait off it.
        self._slots = asyncio.Semaphore(capacity) if capacity else None
        self._driver = driver
        self._gate = gate
        self._plan = plan
        self._at = at
        self._death: RolloutLost | None = None
        self._runs: set[asyncio.Task[ServerResult]] = set()
        self._cancels: set[asyncio.Task[None]] = set()

    async def rollout(self, task: Task) -> Rollout:
        """One attempt at one row; raises only for the caller's own cancellation."""
        if self._slots is None:
            return await self._attempt(task)
        async with self._slots:
            return await self._attempt(task)

    async def _attempt(self, task: Task) -> Rollout:
        task.enter("rollout server")
        started_at, started = utc_now(), time.monotonic()
        endpoint = self._gate.open_rollout(
            task.rollout_id, row_index=task.row.index, attempt=task.attempt, base_url=self._at.gate_url
        )
        endpoint.limits = self._plan.limits
        limits = self._time_limits(endpoint, task)
        try:
            try:
                ended = await self._bounded(endpoint, task, limits)
            except RolloutLost as exc:
                self._cancel(endpoint.rollout_id)
                ended = ServerResult(exc.failure)
            except asyncio.CancelledError:
                self._cancel(endpoint.rollout_id)
                raise
            return _rollout(task, endpoint, ended, started_at, started, limits.waits.seconds * 1000)
        finally:
            self._gate.close_rollout(endpoint)

    def _time_limits(self, endpoint: RolloutEndpoint, task: Task) -> RolloutTimeLimits:
        agent_s = self._plan.timeouts.agent_s if self._driver.tells_limits else None
        limits = RolloutTimeLimits(agent_s, self._limit())

        def state(stage: str) -> None:
            task.enter(stage)
            if stage == "score":
                limits.end()

        def wait(seconds: float) -> None:
            task.enter(waiting(seconds))
            limits.wait(seconds)

        endpoint.on_state, endpoint.on_wait, endpoint.on_begin = state, wait, limits.begin
        return limits

    async def _bounded(self, endpoint: RolloutEndpoint, task: Task, limits: RolloutTimeLimits) -> ServerResult:
        if self._death is not None:
            raise self._death
        run = asyncio.create_task(self._driver.run(endpoint, task.row))
        self._runs.add(run)
        try:
            passed = await limits.over(run, lambda: self._driver.agent_runs(endpoint))
            if passed is None and not run.cancelled():
                return run.result()
            if self._death is not None:
                raise self._death
            if passed == "agent":
                failure = overrun(self._plan.timeouts.agent_s or 0.0)
                raise RolloutLost(failure.category, failure.message, phase=failure.phase, fix=failure.fix)
            raise RolloutLost(
                Category.TIMEOUT,
                f"the rollout server gave no result within {self._limit():g} s",
                phase=Phase.AGENT,
                fix="look at the rollout server's log for a call that blocks or never returns",
            )
        finally:
            self._runs.discard(run)
            if not run.done():
                run.cancel()

    def _limit(self) -> float:
        limits = self._plan.timeouts
        if limits.agent_s is None or limits.score_s is None:
            return UNLIMITED_S
        return limits.agent_s + limits.score_s + GRACE_S

    def _cancel(self, rollout_id: str) -> None:
        """Cancels the rollout on the server, in the background; never an error."""
        if self._death is None:
            task = asyncio.create_task(self._say_cancel(rollout_id))
            self._cancels.add(task)
            task.add_done_callback(self._cancels.discard)

    async def _say_cancel(self, rollout_id: str) -> None:
        try:
            await asyncio.wait_for(self._driver.cancel(rollout_id), 5.0)
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError):
            pass

    async def settle(self) -> None:
        """Lets cancellations get through, briefly."""
        if self._cancels:
            await asyncio.wait(self._cancels, timeout=2.0)
        for task in [*self._cancels, *self._runs]:
            task.cancel()

    async def watch_process(self, died: Callable[[], Awaitable[object]]) -> None:
        code = await died()
        said = f" with exit code {code}" if isinstance(code, int) else ""
        self._die(f"the rollout server ended{said} while rollouts were running")

    async def watch_health(self, client: ServerClient) -> None:
        refusals, heard, silent_s = 0, time.monotonic(), self._at.silent_s
        while refusals < DEAD_AFTER:
            await asyncio.sleep(WATCH_EVERY_S)
            try:
                status, _, _ = await client.ask("GET", "/health")
                refusals = refusals + 1 if silent_s is not None and status in PROXY_SAYS_GONE else 0
                heard = time.monotonic()
            except REFUSED:
                refusals += 1
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError):
                refusals = 0  # slow or busy is not dead
                if silent_s is not None and time.monotonic() - heard > silent_s:
                    return self._die(f"the rollout server at {self._at.url} was not heard for {silent_s:g} s")
        self._die(f"the rollout server at {self._at.url} no longer accepts connections")

    def _die(self, message: str) -> None:
        self._death = RolloutLost(
            Category.SERVER_DIED, message, fix="see the end of the rollout server's log for the reason"
        )
        self.dead.set()
        for run in list(self._runs):
            run.cancel()


class RolloutTimeLimits:
    """The two time limits of one rollout, in seconds: its agent's (None = it has none of its own) and that of
    everything. Neither counts time that a model call spent waiting for a rate limit. Only this side knows of such
    waits, so the agent's limit is kept here; the server is given more, as a backstop for when this client is gone.
    """

    def __init__(self, agent_s: float | None, whole_s: float) -> None:
        self.waits = Waits()
        self._agent_s = agent_s
        now = asyncio.get_running_loop().time()
        self._whole_ends = now + whole_s
        self._agent_ends = None if agent_s is None else now + agent_s

    def wait(self, seconds: float) -> None:
        """A wait for a rate limit begins."""
        fresh = self.waits.add(seconds)
        self._whole_ends += fresh
        if self._agent_ends is not None:
            self._agent_ends += fresh

    def begin(self) -> None:
        """The agent starts now; what came before was the server's queue."""
        if self._agent_ends is not None and self._agent_s is not None:
            self._agent_ends = asyncio.get_running_loop().time() + self._agent_s

    def end(self) -> None:
        """The agent is done; what follows has limits of its own."""
        self._agent_ends = None

    async def over(
        self, run: asyncio.Task[ServerResult], agent_runs: Callable[[], Awaitable[bool | None]]
    ) -> Passed | None:
        """Waits for `run`; which limit passed before it was done, None when it was.

        `agent_runs` is asked when the agent's limit passes: False = it is done, None = it has not begun.
        """
        loop = asyncio.get_running_loop()
        while True:
            ends = self._whole_ends if self._agent_ends is None else min(self._whole_ends, self._agent_ends)
            done, _ = await asyncio.wait([run], timeout=max(0.0, ends - loop.time()))
            if done:
                return None
            now = loop.time()
            if now >= self._whole_ends:
                return "whole"
            if self._agent_ends is not None and now >= self._agent_ends:
                runs = await agent_runs()
                if run.done():
                    return None
                if self._agent_ends is None or loop.time() < self._agent_ends:
                    continue  # told meanwhile that it began, or ended, or waits
                if runs:
                    return "agent"
                self.end() if runs is False else self.begin()


def _rollout(
    task: Task, endpoint: RolloutEndpoint, result: ServerResult, started_at: datetime, started: float, waited_ms: float
) -> Rollout:
    sample, failure = result.sample, result.failure
    by_grader = failure is not None and failure.phase is Phase.SCORE
    messages = (sample.messages if sample is not None else None) or endpoint.messages or task.row.messages()
    rollout = rollout_of(
        task,
        Ended(
            list(messages),
            None if failure is None or by_grader else true_cause(failure, endpoint.model_error),
            list(endpoint.calls),
            started_at,
            started,
            waited_ms,
            finish_reason=result.finish_reason or endpoint.finish_reason,
            num_tool_calls=tool_results(messages),
            tools=endpoint.offered,
            limit=endpoint.limit_reached,
        ),
    )
    rollout.metrics = numbers(result.metrics or {})
    if sample is not None:
        add_sample(rollout, sample, graded=failure is None)
    if by_grader:
        rollout.scores[REWARD] = Score(name=REWARD, failure=failure)
    return rollout
