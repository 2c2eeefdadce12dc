import asyncio
import re
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from osmosis.base.processes import end_tasks
from osmosis.engine.agent import Agent
from osmosis.engine.rollout_model import RolloutModel
from osmosis.engine.task import Task
from osmosis.errors import NetworkError
from osmosis.jobs.artifacts import ArtifactCleaner
from osmosis.jobs.commands import Leftovers
from osmosis.jobs.context import JobFailed, JobLog, setup_failure
from osmosis.jobs.sandboxes import GATE, relayed
from osmosis.jobs.server.pool import ignore_change
from osmosis.records.protocol.messages import INSTANCE_VARIABLE
from osmosis.records.run.plan import EvalPlan
from osmosis.records.run.rollout import Category, Failure, Phase, Rollout
from osmosis.sandbox import Policy
from osmosis.serve.client.model_proxy import ModelProxy
from osmosis.serve.client.remote import ServerAt, served
from osmosis.serve.client.sandboxes import Sandboxes
from osmosis.serve.server_process import RolloutServerProcess, ServerStartError

STEP = "rollout-server"
DEATHS_IN_A_ROW = 6  # Deaths without a finished rollout between; more than it takes to find one that kills the server
DEATHS_IN_ALL = 24
SETTLE_S = 10.0
GRACE_S = 10.0
CUT_OFF_GRACE_S = 1.0
MISSING = re.compile(r"No module named '([^'.]+)")


class EndedWithoutServing(JobFailed): ...


@dataclass(frozen=True, slots=True)
class ServerCommand:
    argv: Sequence[str]
    cwd: Path
    environ: Mapping[str, str]
    label: str
    health_timeout_s: float = 90.0
    policy: Policy = field(default_factory=Policy)  # Its sandbox; in a network of its own, the model proxy is at `GATE`
    cleaner: ArtifactCleaner | None = None
    sandboxes: Sandboxes | None = None
    """Sandboxes that its rollouts ask for (`ctx.sandbox`); none can be made inside its own."""


@dataclass(slots=True)
class _Life:
    agent: Agent
    capacity: int | None
    in_flight: int = 0
    quiet: asyncio.Event = field(default_factory=asyncio.Event)


class ServerSupervisor:
    """Use `running()`; `failed` then holds the `JobFailed` once the server cannot be kept alive."""

    def __init__(self, command: ServerCommand, log: JobLog, leftovers: Leftovers) -> None:
        self.command = command
        self.name = command.label
        self.on_change: Callable[[], None] = ignore_change
        self.failed: asyncio.Future[JobFailed] = asyncio.get_running_loop().create_future()
        self._log = log
        self._leftovers = leftovers
        self._life: _Life | None = None
        self.up = False
        self._isolation = CrashIsolation(1)
        self._deaths = 0
        self._deaths_in_a_row = 0
        self._ever_finished = False
        self._process: RolloutServerProcess | None = None

    async def start(self) -> str:
        process = RolloutServerProcess(
            self.command.argv,
            self.command.cwd,
            {**self.command.environ, INSTANCE_VARIABLE: uuid.uuid4().hex},
            log=self._log.stream(STEP),
            health_timeout_s=self.command.health_timeout_s,
            policy=self.command.policy,
            started=self._leftovers.add,
        )
        self._process = process
        try:
            return await process.start()
        except ServerStartError as problem:
            raise start_failure(problem, self.command) from problem

    @property
    def at_once(self) -> int | None:
        return self._life.capacity if self._life is not None else 0

    def lost(self, rollout: Rollout) -> bool:
        """Return False: a rollout that comes back with `SERVER_DIED` was found to kill servers."""
        return False

    async def stop(self, *, grace_s: float = GRACE_S) -> None:
        """End the server's process group, after `grace_s` seconds by force; do nothing when there is none."""
        if self._process is not None:
            await self._process.stop(grace_s=grace_s)
            if self.command.cleaner is not None:
                await self.command.cleaner.clean()

    @asynccontextmanager
    async def running(self, proxy: ModelProxy, plan: EvalPlan) -> AsyncIterator[Agent]:
        self._isolation = CrashIsolation(plan.concurrency)
        keeper = asyncio.create_task(self._keep(proxy, plan))
        grace_s = CUT_OFF_GRACE_S
        try:
            yield self
            grace_s = GRACE_S
        finally:
            await end_tasks(keeper)
            await self.stop(grace_s=grace_s)

    async def _keep(self, proxy: ModelProxy, plan: EvalPlan) -> None:
        try:
            while True:
                await self._run_once(proxy, plan)
                await self.start()
        except JobFailed as problem:
            self.failed.set_result(problem)
        except Exception as problem:  # noqa: BLE001 - border of a task nobody awaits: the run must hear of it
            message = f"the rollout server cannot be driven: {type(problem).__name__}: {problem}"
            self.failed.set_result(setup_failure(message, category=Category.UNKNOWN))

    async def _run_once(self, proxy: ModelProxy, plan: EvalPlan) -> None:
        process = self._process
        assert process is not None
        lost = 0
        try:
            allowed = {at: listener for at, listener in process.listeners.items() if at != GATE}
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(relayed(allowed))
                gate_url = await stack.enter_async_context(proxy.inside(process.listeners.get(GATE)))
                at = ServerAt(process.url, proxy_url=gate_url, connecting=process.connecting)
                server = await stack.enter_async_context(served(at, proxy, plan, died=process.wait_died))
                self._life = life = _Life(server, server.capacity)
                await self._set_up(True)
                code = await process.wait_died()
                await self._set_up(False)
                lost = life.in_flight
                if lost:
                    life.quiet.clear()
                    await asyncio.wait_for(life.quiet.wait(), SETTLE_S)
        except NetworkError:
            if process.exit_code is None:
                raise
            code = process.exit_code  # it died between its first answer and our first question
        self._deaths += 1
        self._deaths_in_a_row += 1
        await process.stop()
        if self._deaths_in_a_row >= DEATHS_IN_A_ROW or self._deaths >= DEATHS_IN_ALL:
            raise self._give_up(process, code)
        end = _describe_end(process, code)
        self._log.write(STEP, f"the server ended with {end} with {lost} rollouts in flight: restarting it", "warning")

    async def _set_up(self, value: bool) -> None:
        await self._isolation.set_open(value)
        self.up = value
        self.on_change()

    def _give_up(self, process: RolloutServerProcess, code: int) -> JobFailed:
        message = (
            f"{self.command.label}: the rollout server died {self._deaths} times, "
            f"the last time with {_describe_end(process, code)}: {last_line(process.last_output())}"
        )
        failure = Failure(
            phase=Phase.AGENT,
            category=Category.SERVER_DIED,
            message=message,
            traceback=process.last_output() or None,
            fix="its last output is in the run's log; run it in a terminal to reproduce the crash",
        )
        return JobFailed(failure)

    async def run(self, task: Task, model: RolloutModel) -> Rollout:
        suspicion = 0
        while True:
            async with self._isolation.admit(suspicion):
                rollout = await self._run_on_life(task, model)
            if rollout.failure is None or rollout.failure.category is not Category.SERVER_DIED:
                if self.command.cleaner is not None:
                    await self.command.cleaner.clean(task.rollout_id)
                self._deaths_in_a_row = 0
                self._ever_finished = True
                return rollout
            if self._isolation.is_alone(suspicion):
                # A culprit found is progress, unless everyone is one: then it is the server.
                if self._ever_finished:
                    self._deaths_in_a_row = 0
                return rollout
            suspicion += 1

    async def _run_on_life(self, task: Task, model: RolloutModel) -> Rollout:
        life = self._life
        assert life is not None
        life.in_flight += 1
        try:
            return await life.agent.run(task, model)
        finally:
            life.in_flight -= 1
            if life.in_flight == 0:
                life.quiet.set()


def start_failure(problem: ServerStartError, command: ServerCommand) -> JobFailed:
    output = str(problem.details.get("output") or "")
    code = problem.details.get("exit_code_of_server")
    last = last_line(output)
    words = f"; last line of its output: {last}" if last else ""
    if code is None:
        message = f"{command.label}: {problem.message}{words}"
        return setup_failure(message, fix=problem.hint, category=Category.TIMEOUT, tail=output)
    fix = problem.hint
    if missing := MISSING.search("\n".join(output.splitlines()[-4:])):
        fix = f"add the distribution that has {missing[1]} to the dependencies in the rollout's pyproject.toml"
    if code == 0:
        message = f"{command.label}: it ended without serving{words}"
        return EndedWithoutServing(setup_failure(message, fix=problem.hint, tail=output).failure)
    message = f"{command.label}: the rollout server ended with {describe(code)} before it was healthy"
    return setup_failure(f"{message}: {last}" if last else message, fix=fix, tail=output)


def _describe_end(process: RolloutServerProcess, code: int) -> str:
    limit = process.over_limit
    return describe(code) + (f" (beyond the sandbox's limit of {limit.value})" if limit else "")


def describe(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:500] if lines else ""


class CrashIsolation:
    """`concurrency` is how many rollouts run together when none is suspected."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._open = False
        self._waiting: Counter[int] = Counter()
        self._running: Counter[int] = Counter()
        self._changed = asyncio.Condition()

    def group_size(self, suspicion: int) -> int:
        return max(1, self._concurrency >> 2 * suspicion)

    def is_alone(self, suspicion: int) -> bool:
        return suspicion > 0 and self.group_size(suspicion) == 1

    async def set_open(self, value: bool) -> None:
        async with self._changed:
            self._open = value
            self._changed.notify_all()

    @asynccontextmanager
    async def admit(self, suspicion: int) -> AsyncIterator[None]:
        async with self._changed:
            self._waiting[suspicion] += 1
            try:
                await self._changed.wait_for(lambda: self._may(suspicion))
            finally:
                self._waiting[suspicion] -= 1
            self._running[suspicion] += 1
        try:
            yield
        finally:
            self._running[suspicion] -= 1
            await asyncio.shield(self._tell())

    def _may(self, suspicion: int) -> bool:
        more_suspected = any(count and other > suspicion for other, count in self._waiting.items())
        others = any(count and other != suspicion for other, count in self._running.items())
        room = suspicion == 0 or self._running[suspicion] < self.group_size(suspicion)
        return self._open and not more_suspected and not others and room

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()
