"""Run tasks on a rollout server: one task in, one `Rollout` out. A dead server ends all waiting at once."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import aiohttp

from osmosis.base.processes import end_tasks
from osmosis.engine.rollout_model import REWARD, RolloutModel, add_sample, build_rollout, numbers
from osmosis.engine.task import Task
from osmosis.errors import AuthRequired, NetworkError
from osmosis.records.run.plan import EvalPlan
from osmosis.records.run.rollout import Category, Phase, Rollout, Score
from osmosis.sdk.classify import overrun
from osmosis.serve.client import protocols
from osmosis.serve.client.model_proxy import ModelProxy as ModelProxy
from osmosis.serve.client.rollout_endpoint import RolloutEndpoint
from osmosis.serve.http import open_session
from osmosis.serve.server_process import RolloutServerProcess

REQUEST_TIMEOUT_S = 30.0
GRACE_S = 60.0
UNLIMITED_S = 3600.0
Limit = Literal["agent", "rollout"]

WATCH_EVERY_S = 1.0
GATEWAY_ERRORS = frozenset({502, 503, 504})
DEAD_AFTER = 3  # Refused connections in a row, one per watch, until a server counts as dead


@dataclass(frozen=True, slots=True)
class ServerAt:
    url: str
    api_key: str | None = field(default=None, repr=False)
    proxy_url: str = ""  # Address at which its rollouts reach the model proxy; empty for its base URL
    generation: protocols.Generation | None = None
    connecting: Callable[[], socket.socket] | None = None
    silent_s: float | None = None
    """For a server elsewhere: seconds without an answer until it counts as dead, as when its gateway reports it gone.

    None: it is dead only when it refuses connections.
    """


@asynccontextmanager
async def started(
    python: str, entrypoint: Path, environ: Mapping[str, str], *, log: Callable[[str], None]
) -> AsyncIterator[RolloutServerProcess]:
    server = RolloutServerProcess([python, entrypoint.name], entrypoint.parent, environ, log=log)
    try:
        await server.start()
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def served(
    at: ServerAt, proxy: ModelProxy, plan: EvalPlan, *, died: Callable[[], Awaitable[object]] | None = None
) -> "AsyncIterator[ServedRollouts]":
    """Yield the agent behind a rollout server; the model proxy `proxy` must be open. `died` (for example
    `RolloutServerProcess.wait_died`) returns when the server's process has ended; without it, a server that refuses
    connections for some seconds counts as dead. Raises `NetworkError` when there is no healthy server to begin with."""
    async with open_session(connecting=at.connecting) as session:
        client = protocols.ServerClient(session, at.url, at.api_key, REQUEST_TIMEOUT_S)
        generation, capacity = await _detect_generation(client)
        protocol = protocols.open_protocol(at.generation or generation, client, plan, at.proxy_url or proxy.base_url)
        server = ServedRollouts(protocol, proxy, plan, at, capacity)
        watcher = asyncio.create_task(server.watch_process(died) if died else server.watch_health(client))
        try:
            yield server
        finally:
            await end_tasks(watcher)
            await server.settle()


async def check_key(server_url: str, api_key: str | None) -> None:
    """Ask the server something that needs its key; raise `AuthRequired` when it wants another one. A server of
    generation 0.2 knows only the second path. Everything else (a server without a key, none at all) is for `served` to
    find out."""
    async with open_session() as session:
        client = protocols.ServerClient(session, server_url, api_key, REQUEST_TIMEOUT_S)
        try:
            for path in ("/rollout/key-check/status", "/platform/health"):
                status, _, _ = await client.ask("GET", path)
                if status != 404:
                    break
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError):
            return
    if status in (401, 403):
        problem = "requires a key" if api_key is None else "rejected this key"
        message = f"the rollout server at {server_url} {problem} ({status})"
        raise AuthRequired(message, hint="--server-key-env NAME names the variable that holds it")


async def _detect_generation(client: protocols.ServerClient) -> tuple[protocols.Generation, int | None]:
    try:
        status, body, _ = await client.ask("GET", "/health")
        if status != 200:
            raise NetworkError(
                f"{client.url}/health answered {status}", hint="check that this is the URL of a rollout server"
            )
        return protocols.generation_of(body)
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as exc:
        message = f"no rollout server answers at {client.url}: {exc or type(exc).__name__}"
        raise NetworkError(message, hint="start it, or check host and port") from exc
    except protocols.RolloutLost as exc:
        raise NetworkError(f"{client.url}: {exc}", hint="check that this is the URL of a rollout server") from exc


@dataclass(eq=False, repr=False)
class ServedRollouts:
    protocol: protocols.ServerProtocol
    proxy: ModelProxy
    plan: EvalPlan
    at: ServerAt
    capacity: int | None
    dead: asyncio.Event = field(default_factory=asyncio.Event)
    _death: protocols.RolloutLost | None = None
    _runs: set[asyncio.Task[protocols.ServerResult]] = field(default_factory=set)
    _cancels: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        # More than the server runs at once would wait there, on the clock of their time limits; here they wait off it.
        self._slots = asyncio.Semaphore(self.capacity) if self.capacity else None

    async def run(self, task: Task, model: RolloutModel) -> Rollout:
        model.deadline.stop()  # the limits of a server's agent begin when it says so
        if self._slots is None:
            return await self._attempt(task, model)
        queued = time.monotonic()
        async with self._slots:
            model.queued_ms += (time.monotonic() - queued) * 1000
            return await self._attempt(task, model)

    async def _attempt(self, task: Task, model: RolloutModel) -> Rollout:
        task.enter("rollout server")
        endpoint = self.proxy.open_rollout(task.rollout_id, model=model, base_url=self.at.proxy_url)
        agent_s = self.plan.timeouts.agent_s if self.protocol.sends_limits else None
        limits = RolloutTimeLimits(agent_s, self._limit_s())

        def on_state(stage: str) -> None:
            task.enter(stage)
            if stage == "score":
                limits.end_agent()

        endpoint.on_state, endpoint.on_begin = on_state, limits.begin_agent
        model.on_wait = limits.extend
        try:
            try:
                ended = await self._bounded(endpoint, task, limits)
            except protocols.RolloutLost as exc:
                self._cancel(endpoint.rollout_id)
                ended = protocols.ServerResult(exc.failure)
            except asyncio.CancelledError:
                self._cancel(endpoint.rollout_id)
                raise
            return _rollout(task, model, ended)
        finally:
            self.proxy.close_rollout(endpoint)

    async def _bounded(
        self, endpoint: RolloutEndpoint, task: Task, limits: "RolloutTimeLimits"
    ) -> protocols.ServerResult:
        if self._death is not None:
            raise self._death
        run = asyncio.create_task(self.protocol.run(endpoint, task.row))
        self._runs.add(run)
        try:
            passed = await limits.wait_for(run, lambda: self.protocol.agent_runs(endpoint))
            if passed is None and not run.cancelled():
                return run.result()
            if self._death is not None:
                raise self._death
            if passed == "agent":
                failure = overrun(self.plan.timeouts.agent_s or 0.0)
                raise protocols.RolloutLost(failure.category, failure.message, phase=failure.phase, fix=failure.fix)
            message = f"the rollout server gave no result within {self._limit_s():g} s"
            fix = "look at the rollout server's log for a call that blocks or never returns"
            raise protocols.RolloutLost(Category.TIMEOUT, message, phase=Phase.AGENT, fix=fix)
        finally:
            self._runs.discard(run)
            if not run.done():
                run.cancel()

    def _limit_s(self) -> float:
        limits = self.plan.timeouts
        if limits.agent_s is None or limits.score_s is None:
            return UNLIMITED_S
        return limits.agent_s + limits.score_s + GRACE_S

    def _cancel(self, rollout_id: str) -> None:
        if self._death is None:
            task = asyncio.create_task(self._send_cancel(rollout_id))
            self._cancels.add(task)
            task.add_done_callback(self._cancels.discard)

    async def _send_cancel(self, rollout_id: str) -> None:
        with suppress(aiohttp.ClientError, asyncio.TimeoutError, OSError):
            await asyncio.wait_for(self.protocol.cancel(rollout_id), 5.0)

    async def settle(self) -> None:
        if self._cancels:
            await asyncio.wait(self._cancels, timeout=2.0)
        for task in [*self._cancels, *self._runs]:
            task.cancel()

    async def watch_process(self, died: Callable[[], Awaitable[object]]) -> None:
        code = await died()
        reason = f" with exit code {code}" if isinstance(code, int) else ""
        self._die(f"the rollout server ended{reason} while rollouts were running")

    async def watch_health(self, client: protocols.ServerClient) -> None:
        refusals, heard_at, silent_s = 0, time.monotonic(), self.at.silent_s
        while refusals < DEAD_AFTER:
            await asyncio.sleep(WATCH_EVERY_S)
            try:
                status, _, _ = await client.ask("GET", "/health")
                refusals = refusals + 1 if silent_s is not None and status in GATEWAY_ERRORS else 0
                heard_at = time.monotonic()
            except protocols.REFUSED:
                refusals += 1
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError):
                refusals = 0  # slow or busy is not dead
                if silent_s is not None and time.monotonic() - heard_at > silent_s:
                    return self._die(f"the rollout server at {self.at.url} was not heard for {silent_s:g} s")
        self._die(f"the rollout server at {self.at.url} no longer accepts connections")

    def _die(self, message: str) -> None:
        self._death = protocols.RolloutLost(
            Category.SERVER_DIED, message, fix="see the end of the rollout server's log for the reason"
        )
        self.dead.set()
        for run in list(self._runs):
            run.cancel()


class RolloutTimeLimits:
    """The limits in seconds of the agent (None for none of its own) and the whole rollout, without waits for a rate
    limit. Only the client knows of those; the server is given more, as a backstop for when it is gone."""

    def __init__(self, agent_s: float | None, rollout_s: float) -> None:
        self._agent_s = agent_s
        now = asyncio.get_running_loop().time()
        self._rollout_ends = now + rollout_s
        self._agent_ends = None if agent_s is None else now + agent_s

    def extend(self, seconds: float) -> None:
        self._rollout_ends += seconds
        if self._agent_ends is not None:
            self._agent_ends += seconds

    def begin_agent(self) -> None:
        if self._agent_ends is not None and self._agent_s is not None:
            self._agent_ends = asyncio.get_running_loop().time() + self._agent_s

    def end_agent(self) -> None:
        self._agent_ends = None

    async def wait_for(
        self, run: asyncio.Task[protocols.ServerResult], agent_runs: Callable[[], Awaitable[bool | None]]
    ) -> Limit | None:
        """Wait; return which limit passed, if any. `agent_runs` (False: done, None: not begun) is its question."""
        loop = asyncio.get_running_loop()
        while True:
            ends = self._rollout_ends if self._agent_ends is None else min(self._rollout_ends, self._agent_ends)
            done, _ = await asyncio.wait([run], timeout=max(0.0, ends - loop.time()))
            if done:
                return None
            now = loop.time()
            if now >= self._rollout_ends:
                return "rollout"
            if self._agent_ends is not None and now >= self._agent_ends:
                runs = await agent_runs()
                if run.done():
                    return None
                if self._agent_ends is None or loop.time() < self._agent_ends:
                    continue  # it began, ended or waited meanwhile
                if runs:
                    return "agent"
                self.end_agent() if runs is False else self.begin_agent()


def _rollout(task: Task, model: RolloutModel, result: protocols.ServerResult) -> Rollout:
    sample, failure = result.sample, result.failure
    by_grader = failure is not None and failure.phase is Phase.SCORE
    rollout = build_rollout(
        task,
        model,
        sample.messages if sample is not None else None,
        failure=None if by_grader else failure,
        finish_reason=result.finish_reason,
    )
    rollout.metrics = numbers(result.metrics or {})
    if sample is not None:
        add_sample(rollout, sample, graded=failure is None)
    if by_grader:
        rollout.scores[REWARD] = Score(name=REWARD, failure=failure)
    return rollout
