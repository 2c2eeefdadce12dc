import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from osmosis.base.net import is_loopback
from osmosis.base.processes import end_tasks, wait_for_first
from osmosis.engine.agent import Agent
from osmosis.engine.rollout_model import RolloutModel
from osmosis.engine.task import Task
from osmosis.errors import AuthRequired, NetworkError, UsageError
from osmosis.jobs.context import JobFailed, JobLog, setup_failure
from osmosis.records.config.worker import GateAddress
from osmosis.records.run.plan import EvalPlan
from osmosis.records.run.rollout import Category, Phase, Rollout
from osmosis.serve.client.model_proxy import ModelProxy
from osmosis.serve.client.remote import ServedRollouts, ServerAt, check_key, served
from osmosis.serve.client.sandboxes import Sandboxes
from osmosis.training.models import TrainedModel

STEP = "rollout-server"
NONE_LEFT_S = 60.0
TRIES = 4  # Servers that one rollout may lose, since the rollout may be the cause


class Server(Protocol):
    name: str
    failed: asyncio.Future[JobFailed]
    on_change: Callable[[], None]

    @property
    def up(self) -> bool: ...

    @property
    def at_once(self) -> int | None:
        """Return how many rollouts it takes; None: no limit is known."""

    def running(self, proxy: ModelProxy, plan: EvalPlan) -> AbstractAsyncContextManager[Agent]: ...

    def lost(self, rollout: Rollout) -> bool:
        """Return whether the server failed, and not this rollout."""

    async def stop(self) -> None: ...


def ignore_change() -> None: ...


@dataclass(slots=True, eq=False)
class _Member:
    server: Server
    agent: Agent
    in_flight: int = 0

    @property
    def up(self) -> bool:
        return self.server.up and not self.server.failed.done()

    @property
    def room(self) -> bool:
        at_once = self.server.at_once
        return self.up and (at_once is None or self.in_flight < at_once)

    @property
    def load(self) -> float:
        return self.in_flight / (self.server.at_once or 1)


@dataclass(slots=True, eq=False)
class _Waiting:
    member: asyncio.Future[_Member]
    been: set[str]


class ServerPool:
    """Use `running()`; `failed` then holds the `JobFailed` once no server is left."""

    def __init__(
        self,
        servers: Sequence[Server],
        log: JobLog,
        *,
        sandboxes: Sandboxes | None = None,
        patience_s: float = NONE_LEFT_S,
    ) -> None:
        self.sandboxes = sandboxes
        self.failed: asyncio.Future[JobFailed] = asyncio.get_running_loop().create_future()
        self._servers = list(servers)
        self._log = log
        self._patience_s = patience_s
        self._members: list[_Member] = []
        self._waiting: deque[_Waiting] = deque()
        self._news = asyncio.Event()

    @asynccontextmanager
    async def running(self, proxy: ModelProxy, plan: EvalPlan) -> AsyncIterator[Agent]:
        async with AsyncExitStack() as stack:
            for server in self._servers:
                server.on_change = self._changed
                server.failed.add_done_callback(lambda _: self._changed())
                self._members.append(_Member(server, await stack.enter_async_context(server.running(proxy, plan))))
            watching = asyncio.create_task(self._watch())
            try:
                yield self
            finally:
                await end_tasks(watching)

    async def stop(self) -> None:
        await asyncio.gather(*(server.stop() for server in self._servers))

    async def run(self, task: Task, model: RolloutModel) -> Rollout:
        been: set[str] = set()
        losses = 0
        while True:
            member = await self._admitted(been)
            try:
                rollout = await self._on(member, task, model)
            finally:
                self._leave(member)
            if rollout is not None:
                losses += member.server.lost(rollout)
                if not member.server.lost(rollout) or losses >= TRIES:
                    return rollout
            been.add(member.server.name)
            task.enter("waiting")
            reason = rollout.failure.message if rollout is not None and rollout.failure is not None else "it has failed"
            self._log.write(STEP, f"{task.name} begins anew on another server: {member.server.name}: {reason}", "debug")

    async def _on(self, member: _Member, task: Task, model: RolloutModel) -> Rollout | None:
        going = asyncio.ensure_future(member.agent.run(task, model))
        try:
            await wait_for_first(going, member.server.failed)
            return going.result() if going.done() else None
        finally:
            await end_tasks(going)

    async def _admitted(self, been: set[str]) -> _Member:
        if not self._waiting and (member := self._free(been)) is not None:
            member.in_flight += 1
            return member
        waiting = _Waiting(asyncio.get_running_loop().create_future(), been)
        self._waiting.append(waiting)
        try:
            return await waiting.member
        except asyncio.CancelledError:
            if waiting.member.done() and not waiting.member.cancelled():
                self._leave(waiting.member.result())
            raise

    def _free(self, been: set[str]) -> _Member | None:
        others = [member for member in self._members if member.up and member.server.name not in been]
        free = [member for member in others or self._members if member.room]
        return min(free, key=lambda member: member.load, default=None)

    def _leave(self, member: _Member) -> None:
        member.in_flight -= 1
        self._hand_out()

    def _hand_out(self) -> None:
        waiting: list[_Waiting] = []
        while self._waiting and any(member.room for member in self._members):
            first = self._waiting.popleft()
            if first.member.done():
                continue
            member = self._free(first.been)
            if member is None:  # room only where it has been
                waiting.append(first)
                continue
            member.in_flight += 1
            first.member.set_result(member)
        self._waiting.extendleft(reversed(waiting))

    def _changed(self) -> None:
        self._news.set()
        self._hand_out()

    async def _watch(self) -> None:
        while True:
            self._news.clear()
            failures = [member.server.failed.result() for member in self._members if member.server.failed.done()]
            if len(failures) == len(self._members):
                return self.failed.set_result(failures[-1])
            any_up = any(member.up for member in self._members)
            try:
                await asyncio.wait_for(self._news.wait(), None if any_up else self._patience_s)
            except asyncio.TimeoutError:
                names = ", ".join(member.server.name for member in self._members if not member.server.failed.done())
                message = f"no rollout server has answered for {self._patience_s:g} s: {names}"
                if failures:
                    message += f"; {len(failures)} have failed: {failures[-1].message}"
                fix = "start them again (osmosis serve), then: osmosis train resume; what is stored of the step is kept"
                return self.failed.set_result(setup_failure(message, fix=fix, category=Category.SERVER_DIED))


LOOK_EVERY_S = 1.0
SILENT_S = 90.0
_OF_THE_SERVER = frozenset({Category.SERVER_DIED, Category.CONNECTION, Category.TIMEOUT, Category.SERVER_ERROR})


class RemoteServer:
    """Use `running()`; it then polls whether the server is there."""

    def __init__(self, url: str, api_key: str | None, log: JobLog) -> None:
        self.name = url
        self.failed: asyncio.Future[JobFailed] = asyncio.get_running_loop().create_future()
        self.on_change: Callable[[], None] = ignore_change
        self._key = api_key
        self._log = log
        self._server: ServedRollouts | None = None
        self._said = ""

    async def check(self) -> None:
        """Raise `JobFailed` when the server refuses its key; one that does not answer may still come."""
        try:
            await check_key(self.name, self._key)
        except AuthRequired as problem:
            fix = "[advanced] rollout_server_key_env names the secret with its key: osmosis secret set NAME"
            raise setup_failure(problem.message, fix=fix, category=Category.AUTH) from problem

    @property
    def up(self) -> bool:
        return self._server is not None

    @property
    def at_once(self) -> int | None:
        return self._server.capacity if self._server is not None else 0

    def lost(self, rollout: Rollout) -> bool:
        """Return whether the server, or the way to it, failed, so that another one should try."""
        failure = rollout.failure
        return failure is not None and failure.phase is Phase.SETUP and failure.category in _OF_THE_SERVER

    @asynccontextmanager
    async def running(self, proxy: ModelProxy, plan: EvalPlan) -> AsyncIterator[Agent]:
        keeper = asyncio.create_task(self._keep(proxy, plan))
        try:
            yield self
        finally:
            await end_tasks(keeper)

    async def stop(self) -> None:
        """Do nothing: whoever started it ends it."""

    async def _keep(self, proxy: ModelProxy, plan: EvalPlan) -> None:
        while True:
            try:
                async with served(ServerAt(self.name, self._key, silent_s=SILENT_S), proxy, plan) as server:
                    at_once = f", {server.capacity} rollouts at once" if server.capacity else ""
                    self._tell(server, f"{self.name} answers{at_once}")
                    await server.dead.wait()
                    self._tell(None, f"{self.name} does not answer any more: its rollouts go to others")
            except NetworkError as problem:
                self._tell(None, problem.message)
            await asyncio.sleep(LOOK_EVERY_S)

    def _tell(self, server: ServedRollouts | None, text: str) -> None:
        self._server = server
        if text != self._said:
            self._said = text
            self._log.write(STEP, text, "info" if server is not None else "warning")
        self.on_change()

    async def run(self, task: Task, model: RolloutModel) -> Rollout:
        assert self._server is not None
        return await self._server.run(task, model)


def check_reach(at: GateAddress, servers: Sequence[str]) -> None:
    """Raise `JobFailed` when servers at these URLs and a job of this machine could not reach each other."""
    far = [url for url in servers if not is_loopback(url)]
    if far and not at.advertise_url:
        message = f"the rollout server at {far[0]} cannot reach this job: its machine advertises no address"
        fix = "start its worker with --advertise-url https://NAME, see docs/scaling.md"
        raise setup_failure(message, fix=fix, category=Category.BAD_REQUEST)
    try:
        for url in far:
            at.refuse_plain(url)
    except UsageError as problem:
        raise setup_failure(problem.message, fix=problem.hint, category=Category.BAD_REQUEST) from problem


@asynccontextmanager
async def open_model_proxy(
    model: TrainedModel, at: GateAddress, *, elsewhere: bool, sandboxes: Sandboxes | None
) -> AsyncIterator[ModelProxy]:
    if elsewhere:
        proxy = ModelProxy(
            model, host=at.host, port=at.port, advertise_url=at.advertise_url, observer=model, sandboxes=sandboxes
        )
    else:
        proxy = ModelProxy(model, observer=model, sandboxes=sandboxes)
    try:
        await proxy.open()
    except OSError as problem:
        await proxy.close()
        message = f"the model endpoint cannot listen on {at.listen}: {problem.strerror or problem}"
        fix = "another job of this machine may have that port: --gate-listen HOST:0 takes a free one for each"
        raise setup_failure(message, fix=fix, category=Category.CONNECTION) from problem
    try:
        yield proxy
    finally:
        await proxy.close()
