"""An eval run: the stages of its rollout server (`server_stages`), its model, rollouts, report.

The one loop is `engine.evaluate`; here is only what surrounds it in a job. What an earlier attempt finished is in
the journal, what the platform has is fetched into it, and what the platform lacks is sent again: nothing runs twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson

from osmosis._version import __version__
from osmosis.base.tasks import end, until_one
from osmosis.engine.evaluate import Options, evaluate
from osmosis.engine.journal import Journal, key_of
from osmosis.engine.resume import settle
from osmosis.errors import Conflict
from osmosis.llm import Model
from osmosis.metrics.summary import summarize
from osmosis.records.config import EvalConfig
from osmosis.records.plan import EvalPlan, Selection
from osmosis.records.report import Report
from osmosis.records.rollout import Category, Failure, Phase, Rollout
from osmosis.records.run import JobResult, Stage
from osmosis.records.run_status import RunStatus
from osmosis.serve.drive.traingate import TrainGate

from .artifact_sender import ArtifactSender
from .checkout import Checkout
from .deployed_model import served_model
from .job import JobContext, JobFailed, setup_failed
from .job_rows import JobRows
from .model_probe import answers, opened
from .server_stages import ServerStages
from .shared_limits import SharedLimits
from .supervisor import ServerSupervisor

JOURNAL_TRIES = 60
JOURNAL_EVERY_S = 0.5
IN_FLIGHT_S = 30.0
"""How long a run that is stopped waits for its rollouts in flight."""


class EvalRun:
    """The evaluation of one job. `report()` works at any time: also for a run that was stopped or failed."""

    def __init__(self, context: JobContext, config: EvalConfig) -> None:
        self.context = context
        self.config = config
        spec = context.spec
        self.plan = EvalPlan.from_config(
            config,
            name=spec.run_name,
            dataset=config.experiment.dataset,
            selection=Selection(rows=spec.own_rows),
            provenance={"commit_sha": spec.commit_sha, "osmosis": __version__},
        )
        self.shared = SharedLimits(context, self.plan)
        self.journal = Journal(context.work_dir / "journal", redactor=context.redactor)
        self._started_rollouts = False

    @classmethod
    def of(cls, context: JobContext) -> EvalRun:
        """The work of a job of kind `eval`."""
        config = context.spec.config
        if not isinstance(config, EvalConfig):
            raise setup_failed("the config of this run is not that of an eval", category=Category.UNKNOWN)
        return cls(context, config)

    async def go(self) -> JobResult:
        """All stages. Raises `JobFailed` with the stage's failure."""
        stages = ServerStages(self.context)
        async with self._checked_out(stages) as (found, model):
            prepared = await stages.prepare(found)
            made = prepared.environment
            self.plan.provenance.update(python=made.python_version, osmosis_of_rollout=made.osmosis_version)
            server = await stages.start(prepared)
            try:
                return self._result(await self._rollouts(model, server))
            finally:
                await server.stop()

    def stop(self) -> float:
        """Before the first rollout there is nothing to wait for; after that, what is in flight may finish."""
        return IN_FLIGHT_S if self._started_rollouts else 0.0

    def report(self) -> Report | None:
        """The figures of what is finished so far; None before the first rollout."""
        if not self.journal.rollouts_path.exists():
            return None
        made = summarize(self.journal.rollouts(), self.plan, rows=len(self.context.spec.own_rows))
        made.dataset_rows = self.context.spec.dataset_rows
        made.stopped = "cut off"
        return made if made.completed else None

    def _result(self, report: Report) -> JobResult:
        if report.completed >= report.total or report.stopped is None:
            return JobResult(status=RunStatus.FINISHED, report=report)
        if self.context.stop.is_set():
            return JobResult(status=RunStatus.STOPPED, report=report)
        if spent := self.shared.spending.exceeded():
            return JobResult.used_up(spent, report)
        if report.stopped == self.plan.timeouts.ran_out():
            return JobResult.ran_out(report.stopped, report)
        return JobResult(status=RunStatus.FAILED, report=report, failure=_gave_up(report))

    @asynccontextmanager
    async def _checked_out(self, stages: ServerStages) -> AsyncIterator[tuple[Checkout, Model]]:
        """The commit, and the model, which has answered once: it is asked while the commit is fetched. A model of the
        platform that is not deployed is loaded for this run."""
        name = self.plan.model.name
        if self.plan.model.kind == "trained":
            found = await stages.checkout()
            self.context.enter(Stage.PREFLIGHT, f"loading the model {name}")
            async with served_model(self.context, self.plan) as model:
                yield found, model
            return
        stand_in = " (offline model: rule-based, makes seeded mistakes)" if self.plan.model.kind == "offline" else ""
        model = opened(self.plan, self.context.secrets, signals=self.shared)
        self.shared.asks(model)
        asking = asyncio.create_task(answers(model, self.plan))
        try:
            found = await stages.checkout()
            self.context.enter(Stage.PREFLIGHT, f"checking the model {name}{stand_in} with one call")
            await asking
            yield found, model
        finally:
            await end(asking)
            await model.close()

    async def _rollouts(self, model: Model, server: ServerSupervisor) -> Report:
        spec = self.context.spec
        self.context.enter(Stage.ROLLOUTS, f"running {len(spec.own_rows)} rows x {self.plan.attempts} attempts")
        await self._open_journal()
        gate = TrainGate(model, sandboxes=server.command.sandboxes)
        await gate.start()
        try:
            rows = await self._agree_with_platform()
            async with ArtifactSender(self.context) as artifacts, server.running(gate, self.plan) as rollout:
                self._started_rollouts = True
                evaluating = asyncio.create_task(
                    evaluate(
                        self.plan,
                        rows.all(spec.own_rows),
                        rollout,
                        journal=self.journal,
                        observer=_Told(self.context, self.journal, artifacts),
                        stop=self.context.stop,
                        options=Options(
                            rows=len(spec.own_rows),
                            dataset_rows=spec.dataset_rows,
                            hashes={"agent": spec.commit_sha},
                            limiter=self.shared.limiter,
                            spending=self.shared.spending,
                            room=self.context.room,
                        ),
                    )
                )
                return await _either(evaluating, server.failed)
        finally:
            await gate.stop()
            self.journal.close()

    async def _open_journal(self) -> None:
        """Waits a little for an earlier job of this run, which has lost its lease and is about to notice."""
        for _ in range(JOURNAL_TRIES):
            try:
                return self.journal.open(self.plan)
            except Conflict:
                await asyncio.sleep(JOURNAL_EVERY_S)
        self.journal.open(self.plan)

    async def _agree_with_platform(self) -> JobRows:
        """The rows of the job. Journal and platform hold the same rollouts of them afterwards."""
        there = await self.context.reporter.stored()
        rows = await JobRows.read(self.context, there)
        settle(self.journal, rows.known.keys)
        here = self.journal.finished()
        if missing_here := there - set(here):
            fetched = 0
            async for body in self.context.reporter.bodies():
                rollout = Rollout.model_validate(body)
                if rollout.key in missing_here:
                    self.journal.append(rollout)
                    fetched += 1
            self.context.log.write("rollouts", f"{fetched} finished rollouts were fetched from the platform")
        sent = 0
        for line in self.journal.lines():
            if key_of(line) not in there:
                await self.context.room()
                self.context.reporter.rollout(orjson.dumps(line))
                sent += 1
        if len(here):
            self.context.log.write(
                "rollouts", f"resuming: {len(here)} rollouts are finished, {sent} of them are sent again"
            )
        return rows


class _Told:
    """The engine's observer of a job: rollouts to the platform, figures into the progress."""

    def __init__(self, context: JobContext, journal: Journal, artifacts: ArtifactSender) -> None:
        self._context = context
        self._journal = journal
        self._artifacts = artifacts
        self._done = 0
        self._total = 0

    def started(self, total: int, done: int) -> None:
        self._total, self._done = total, done
        self._context.advance(done, total)

    def rollout(self, rollout: Rollout, running: Report | None) -> None:
        self._done += 1
        self._context.reporter.rollout(self._journal.line(rollout))
        self._artifacts.put(rollout.rollout_id)
        self._context.advance(self._done, self._total, running)

    def stage(self, text: str) -> None:
        self._context.log.write("rollouts", text, "warning")

    def finished(self, report: Report) -> None:
        self._context.advance(report.completed, report.total, report)


def _gave_up(report: Report) -> Failure:
    """A run that ended itself: the commonest of its failures says why."""
    commonest = max(report.failures, key=lambda failure: failure.count, default=None)
    message = f"the run ended early: {report.stopped}"
    if commonest is None:
        return Failure(phase=Phase.SETUP, category=Category.UNKNOWN, message=message)
    return Failure(
        phase=commonest.phase,
        category=commonest.category,
        message=f"{message}; {commonest.count} rollouts failed like this: {commonest.example}",
        fix="fix the cause, then retry the run; successful rollouts are kept",
    )


async def _either(evaluating: asyncio.Task[Report], failed: asyncio.Future[JobFailed]) -> Report:
    """The report, or the failure of the server under it."""
    try:
        await until_one(evaluating, failed)
        if evaluating.done():
            return evaluating.result()
        raise failed.result()
    finally:
        await end(evaluating)
