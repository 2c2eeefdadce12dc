"""A rollout server on another machine, as a job sees it: whether it is there, and its rollouts while it is.

Somebody else starts it (`osmosis serve`), with its own code, environment and secrets: of the run it gets the rows, the
address of the model endpoint with a token for each rollout, and its own key, nothing else. It is never ended here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from osmosis.base.tasks import end
from osmosis.engine.task import RolloutFn, Task
from osmosis.errors import AuthRequired, NetworkError
from osmosis.records.plan import EvalPlan
from osmosis.records.rollout import Category, Phase, Rollout
from osmosis.serve.drive.client import ServedRollouts, ServerAt, check_key, connected
from osmosis.serve.drive.traingate import TrainGate

from .job import JobFailed, JobLog, setup_failed
from .server_pool import nobody_hears

STEP = "rollout-server"
LOOK_EVERY_S = 1.0
SILENT_S = 90.0
"""A machine that was lost refuses nothing; a busy one may be silent for a while."""
_OF_THE_SERVER = frozenset({Category.SERVER_DIED, Category.CONNECTION, Category.TIMEOUT, Category.SERVER_ERROR})


class ServerElsewhere:
    """Use `running()`; it is then asked again and again whether it is there."""

    def __init__(self, url: str, api_key: str | None, log: JobLog) -> None:
        self.name = url
        self.failed: asyncio.Future[JobFailed] = asyncio.get_running_loop().create_future()
        self.on_change: Callable[[], None] = nobody_hears
        self._key = api_key
        self._log = log
        self._server: ServedRollouts | None = None
        self._said = ""

    async def check(self) -> None:
        """Raises `JobFailed` when the server refuses its key; one that is not there may come."""
        try:
            await check_key(self.name, self._key)
        except AuthRequired as problem:
            raise setup_failed(
                problem.message,
                fix="[advanced] rollout_server_key_env names the secret with its key: osmosis secret set NAME",
                category=Category.AUTH,
            ) from problem

    @property
    def up(self) -> bool:
        return self._server is not None

    @property
    def at_once(self) -> int | None:
        return self._server.capacity if self._server is not None else 0

    def lost(self, rollout: Rollout) -> bool:
        """Whether it was the server, or the way to it, that failed: another one may do better."""
        failure = rollout.failure
        return failure is not None and failure.phase is Phase.SETUP and failure.category in _OF_THE_SERVER

    @asynccontextmanager
    async def running(self, gate: TrainGate, plan: EvalPlan) -> AsyncIterator[RolloutFn]:
        """Its rollouts; only for as long as it is `up`."""
        keeper = asyncio.create_task(self._keep(gate, plan))
        try:
            yield self._rollout
        finally:
            await end(keeper)

    async def stop(self) -> None:
        """It goes on: whoever started it ends it."""

    async def _keep(self, gate: TrainGate, plan: EvalPlan) -> None:
        while True:
            try:
                async with connected(ServerAt(self.name, self._key, silent_s=SILENT_S), gate, plan) as server:
                    at_once = f", {server.capacity} rollouts at once" if server.capacity else ""
                    self._tell(server, f"{self.name} answers{at_once}")
                    await server.dead.wait()
                    self._tell(None, f"{self.name} does not answer any more: its rollouts go to others")
            except NetworkError as problem:
                self._tell(None, problem.message)
            await asyncio.sleep(LOOK_EVERY_S)

    def _tell(self, server: ServedRollouts | None, said: str) -> None:
        self._server = server
        if said != self._said:
            self._said = said
            self._log.write(STEP, said, "info" if server is not None else "warning")
        self.on_change()

    async def _rollout(self, task: Task) -> Rollout:
        assert self._server is not None
        return await self._server.rollout(task)
