"""The rollout server of a run, kept alive: started, watched, and started again when it dies in the middle.

Rollouts that were in flight when the server died are tried again in smaller groups (`quarantine`), so that the one that
kills the server is told from those beside it; that one has failed. A server that keeps dying ends the run. Nothing is
scored or stored here.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from osmosis.base.tasks import end
from osmosis.engine.task import RolloutFn, Task
from osmosis.errors import NetworkError
from osmosis.records.plan import EvalPlan
from osmosis.records.rollout import Category, Failure, Phase, Rollout
from osmosis.records.wire import INSTANCE_VARIABLE
from osmosis.sandbox import Policy
from osmosis.sandbox import start as start_sandbox
from osmosis.serve.drive.client import ServerAt, connected
from osmosis.serve.drive.process import Begin, RolloutServerProcess, ServerStartError
from osmosis.serve.drive.sandboxes import Sandboxes
from osmosis.serve.drive.traingate import TrainGate

from .artifact_cleaner import ArtifactCleaner
from .boundary import GATE
from .commands import Leftovers
from .job import JobFailed, JobLog, setup_failed
from .quarantine import Quarantine
from .relay import relayed
from .server_pool import nobody_hears

STEP = "rollout-server"
DEATHS_IN_A_ROW = 6
"""With no rollout finished between: more than it takes to find one that kills the server."""
DEATHS_IN_ALL = 24
SETTLE_S = 10.0
GRACE_S = 10.0
CUT_OFF_GRACE_S = 1.0
"""When rollouts in flight are given up."""
MISSING = re.compile(r"No module named '([^'.]+)")


class EndedWithoutServing(JobFailed):
    """The script ran to its end, without an error and without a server."""


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """How the server is started: command, folder, environment (the port is added), and how long it may take."""

    argv: Sequence[str]
    cwd: Path
    environ: Mapping[str, str]
    label: str
    """What the messages call it: `rollouts/<name>/main.py`."""
    health_timeout_s: float = 90.0
    policy: Policy = field(default_factory=Policy)
    """Its sandbox; where its network is its own, the gate is at `GATE`."""
    cleaner: ArtifactCleaner | None = None
    """Takes secrets out of the files that rollouts leave."""
    begin: Begin = start_sandbox
    sandboxes: Sandboxes | None = None
    """Those that its rollouts ask for (`ctx.sandbox`): beside it, because none can be made inside of its own."""


@dataclass(slots=True)
class _Life:
    """One life of the server: from healthy to dead."""

    rollout: RolloutFn
    capacity: int | None
    in_flight: int = 0
    quiet: asyncio.Event = field(default_factory=asyncio.Event)


class ServerSupervisor:
    """Use `running()`; `failed` then holds the `JobFailed` once the server cannot be kept alive."""

    def __init__(self, command: ServerCommand, log: JobLog, leftovers: Leftovers) -> None:
        self.command = command
        self.name = command.label
        self.on_change: Callable[[], None] = nobody_hears
        self.failed: asyncio.Future[JobFailed] = asyncio.get_running_loop().create_future()
        self._log = log
        self._leftovers = leftovers
        self._life: _Life | None = None
        self._up = False
        self._quarantine = Quarantine(1)
        self._deaths = 0
        self._deaths_in_a_row = 0
        self._ever_finished = False
        self._process: RolloutServerProcess | None = None

    async def start(self) -> str:
        """Starts the server and returns its URL. Raises `JobFailed` with the end of its output."""
        environ = {**self.command.environ, INSTANCE_VARIABLE: uuid.uuid4().hex}
        process = RolloutServerProcess(
            self.command.argv,
            self.command.cwd,
            environ,
            log=self._log.stream(STEP),
            health_timeout_s=self.command.health_timeout_s,
            policy=self.command.policy,
            begin=self.command.begin,
        )
        self._process = process
        starting = asyncio.create_task(process.start())
        try:
            while not starting.done() and process.pid is None:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.01)
            self._leftovers.add(process.pid)
            return await starting
        except ServerStartError as problem:
            raise start_failure(problem, self.command) from problem
        finally:
            await end(starting)

    @property
    def up(self) -> bool:
        return self._up

    @property
    def at_once(self) -> int | None:
        """How many rollouts it takes now; None: no limit is known."""
        return self._life.capacity if self._life is not None else 0

    def lost(self, rollout: Rollout) -> bool:
        """Never: what comes back with `SERVER_DIED` was found to end servers."""
        return False

    async def stop(self, *, grace_s: float = GRACE_S) -> None:
        """Ends the server's process group, after `grace_s` by force; without harm when there is none."""
        if self._process is not None:
            await self._process.stop(grace_s=grace_s)
            if self.command.cleaner is not None:
                await self.command.cleaner.clean_all()

    @asynccontextmanager
    async def running(self, gate: TrainGate, plan: EvalPlan) -> AsyncIterator[RolloutFn]:
        """A `RolloutFn` over the started server that outlives its deaths; the server is ended at the close."""
        self._quarantine = Quarantine(plan.concurrency)
        keeper = asyncio.create_task(self._keep(gate, plan))
        grace_s = CUT_OFF_GRACE_S
        try:
            yield self._rollout
            grace_s = GRACE_S
        finally:
            await end(keeper)
            await self.stop(grace_s=grace_s)

    async def _keep(self, gate: TrainGate, plan: EvalPlan) -> None:
        try:
            while True:
                await self._live(gate, plan)
                await self.start()
        except JobFailed as problem:
            self.failed.set_result(problem)
        except Exception as problem:  # noqa: BLE001 - border of a task nobody awaits: the run must hear of it
            message = f"the rollout server cannot be driven: {type(problem).__name__}: {problem}"
            self.failed.set_result(setup_failed(message, category=Category.UNKNOWN))

    async def _live(self, gate: TrainGate, plan: EvalPlan) -> None:
        """One life, until the process has ended and every rollout that was on it knows. Raises when it was the last."""
        process = self._process
        assert process is not None
        lost = 0
        try:
            allowed = {at: listener for at, listener in process.listeners.items() if at != GATE}
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(relayed(allowed))
                gate_url = await stack.enter_async_context(gate.inside(process.listeners.get(GATE)))
                at = ServerAt(process.url, gate_url=gate_url, connecting=process.connecting)
                server = await stack.enter_async_context(connected(at, gate, plan, died=process.wait_died))
                self._life = life = _Life(server.rollout, server.capacity)
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
            raise self._gave_up(process, code)
        self._log.write(
            STEP,
            f"the server ended with {_end_of(process, code)} with {lost} rollouts in flight: restarting it",
            "warning",
        )

    async def _set_up(self, value: bool) -> None:
        await self._quarantine.set_open(value)
        self._up = value
        self.on_change()

    def _gave_up(self, process: RolloutServerProcess, code: int) -> JobFailed:
        message = (
            f"{self.command.label}: the rollout server died {self._deaths} times, "
            f"the last time with {_end_of(process, code)}: {last_line(process.last_output())}"
        )
        failure = Failure(
            phase=Phase.AGENT,
            category=Category.SERVER_DIED,
            message=message,
            traceback=process.last_output() or None,
            fix="its last output is in the run's log; run it in a terminal to reproduce the crash",
        )
        return JobFailed(failure)

    async def _rollout(self, task: Task) -> Rollout:
        """One attempt at one row, over as many lives of the server as it takes to know whose fault its deaths are."""
        suspicion = 0
        while True:
            async with self._quarantine.admitted(suspicion):
                rollout = await self._on_this_life(task)
            if not _died(rollout):
                if self.command.cleaner is not None:
                    await self.command.cleaner.clean(task.rollout_id)
                self._deaths_in_a_row = 0
                self._ever_finished = True
                return rollout
            if self._quarantine.alone(suspicion):
                # A culprit found is progress, unless everyone is one: then it is the server.
                if self._ever_finished:
                    self._deaths_in_a_row = 0
                return rollout
            suspicion += 1

    async def _on_this_life(self, task: Task) -> Rollout:
        life = self._life
        assert life is not None
        life.in_flight += 1
        try:
            return await life.rollout(task)
        finally:
            life.in_flight -= 1
            if life.in_flight == 0:
                life.quiet.set()


def start_failure(problem: ServerStartError, command: ServerCommand) -> JobFailed:
    """Why a server did not come up, in the words of its own last output."""
    output = str(problem.details.get("output") or "")
    code = problem.details.get("exit_code_of_server")
    said = last_line(output)
    if code is None:
        return setup_failed(
            f"{command.label}: {problem.message}" + (f"; last line of its output: {said}" if said else ""),
            fix=problem.hint,
            category=Category.TIMEOUT,
            tail=output,
        )
    fix = problem.hint
    if missing := MISSING.search("\n".join(output.splitlines()[-4:])):
        fix = f"add the distribution that has {missing[1]} to the dependencies in the rollout's pyproject.toml"
    if code == 0:
        message = f"{command.label}: it ended without serving" + (f"; last line of its output: {said}" if said else "")
        return EndedWithoutServing(setup_failed(message, fix=problem.hint, tail=output).failure)
    return setup_failed(
        f"{command.label}: the rollout server ended with {describe(code)} before it was healthy"
        + (f": {said}" if said else ""),
        fix=fix,
        tail=output,
    )


def _end_of(process: RolloutServerProcess, code: int) -> str:
    limit = process.over_limit
    return describe(code) + (f" (beyond the sandbox's limit of {limit.value})" if limit else "")


def describe(code: int) -> str:
    """An exit code in words: `exit code 1`, `signal 9`."""
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:500] if lines else ""


def _died(rollout: Rollout) -> bool:
    return rollout.failure is not None and rollout.failure.category is Category.SERVER_DIED
