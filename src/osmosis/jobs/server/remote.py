import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from osmosis.base.net import is_loopback
from osmosis.base.processes import end_tasks
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

from .pool import ignore_change

STEP = "rollout-server"
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
        self._count_sampled = ""

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
        if text != self._count_sampled:
            self._count_sampled = text
            self._log.write(STEP, text, "info" if server is not None else "warning")
        self.on_change()

    async def run(self, task: Task, model: RolloutModel) -> Rollout:
        assert self._server is not None
        return await self._server.run(task, model)


def check_reach(at: GateAddress, servers: Sequence[str]) -> None:
    """Raise `JobFailed` when servers at these URLs and a job of this machine could not reach each other."""
    far = [url for url in servers if not is_loopback(url)]
    if far and not at.advertise_url:
        raise setup_failure(
            f"the rollout server at {far[0]} cannot reach this job: its machine advertises no address",
            fix="start its worker with --advertise-url https://NAME, see docs/scaling.md",
            category=Category.BAD_REQUEST,
        )
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
        raise setup_failure(
            f"the model endpoint cannot listen on {at.listen}: {problem.strerror or problem}",
            fix="another job of this machine may have that port: --gate-listen HOST:0 takes a free one for each",
            category=Category.CONNECTION,
        ) from problem
    try:
        yield proxy
    finally:
        await proxy.close()
