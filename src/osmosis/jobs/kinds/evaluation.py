"""An evaluation, or a search over the texts of a rollout: GEPA runs in a thread, rollouts and reflections on the loop.
A candidate's rollouts have a step of their own; the winner's test rollouts have step 0, which an evaluation counts."""

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import orjson

from osmosis._version import __version__
from osmosis.base.files import write_json
from osmosis.base.processes import end_tasks, wait_for_first
from osmosis.bridges.export_process import Exports
from osmosis.engine.evaluate import Evaluation, Observer, StoredFigures
from osmosis.engine.journal import Journal, key_of
from osmosis.engine.limits import Limiter, Spending
from osmosis.engine.resume import settle
from osmosis.errors import Conflict, LoadError, OsmosisError
from osmosis.jobs.artifacts import ArtifactSender
from osmosis.jobs.context import Job, JobContext, JobFailed
from osmosis.jobs.exports import exporting, open_exports
from osmosis.jobs.models import open_plan_model, open_platform_model, probe_model
from osmosis.jobs.prepare.checkout import Checkout, JobRows, locate
from osmosis.jobs.server.stages import PreparedRollout, ServerStages
from osmosis.jobs.server.supervisor import ServerSupervisor
from osmosis.llm import Model
from osmosis.llm.failures import RetryingModel
from osmosis.local.optimization import Candidates, Reflection, Search, is_outage, load_gepa, read_texts, split_rows
from osmosis.local.prepare import check_price
from osmosis.local.run_options import key_for, parse_model
from osmosis.metrics.summary import Summary, summarize
from osmosis.records.config.optimize import SEED, Optimization, OptimizeConfig
from osmosis.records.config.run_config import EvalConfig
from osmosis.records.run.job import HeartbeatReply, JobResult, Stage
from osmosis.records.run.plan import SMOLLM2, EvalPlan, Selection
from osmosis.records.run.report import Report
from osmosis.records.run.rollout import Category, Failure, Phase, Rollout
from osmosis.records.run.status import RunStatus
from osmosis.serve.client.model_proxy import ModelProxy

JOURNAL_TRIES = 60
JOURNAL_EVERY_S = 0.5
IN_FLIGHT_S = 30.0


class EvaluationJob(Job):
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

    async def run(self) -> JobResult:
        stages, exports = ServerStages(self.context), open_exports(self.context)
        async with self._checkout_and_model(stages) as (checkout, model):
            prepared = await stages.prepare(checkout)
            version = prepared.environment.osmosis_version
            self.plan.provenance.update(python=prepared.environment.python_version, osmosis_of_rollout=version)
            return await self._evaluate(model, prepared, stages, exports)

    async def _evaluate(
        self, model: Model, prepared: PreparedRollout, stages: ServerStages, exports: Exports
    ) -> JobResult:
        server = await stages.start(prepared)
        try:
            report = await self._rollouts(model, server, stages, exports)
            if report.completed >= report.total or report.stopped is None:
                return JobResult(status=RunStatus.FINISHED, report=report)
            if self.context.stop.is_set():
                return JobResult(status=RunStatus.STOPPED, report=report)
            if spent := self.shared.spending.exceeded():
                return JobResult.used_up(spent, report)
            if report.stopped == self.plan.timeouts.ran_out():
                return JobResult.ran_out(report.stopped, report)
            return JobResult(status=RunStatus.FAILED, report=report, failure=_give_up(report))
        finally:
            await server.stop()

    def stop(self) -> float:
        return IN_FLIGHT_S if self._started_rollouts else 0.0

    def report(self) -> Report | None:
        if not self.journal.rollouts_path.exists():
            return None
        report = summarize(self.journal.rollouts(), self.plan, rows=len(self.context.spec.own_rows))
        report.dataset_rows = self.context.spec.dataset_rows
        report.stopped = "cut off"
        return report if report.completed else None

    @asynccontextmanager
    async def _checkout_and_model(self, stages: ServerStages) -> AsyncIterator[tuple[Checkout, Model]]:
        name = self.plan.model.name
        if self.plan.model.kind == "trained":
            checkout = await stages.checkout()
            self.context.enter(Stage.PREFLIGHT, f"loading the model {name}")
            async with open_platform_model(self.context, self.plan) as model:
                yield checkout, model
            return
        is_stand_in = self.plan.model.kind == "offline" and name != SMOLLM2
        stand_in = " (offline model: rule-based, makes seeded mistakes)" if is_stand_in else ""
        model = open_plan_model(self.plan, self.context.secrets, signals=self.shared)
        self.shared.model = model
        asking = asyncio.create_task(probe_model(model, self.plan))
        try:
            checkout = await stages.checkout()
            self.context.enter(Stage.PREFLIGHT, f"checking the model {name}{stand_in} with one call")
            await asking
            yield checkout, model
        finally:
            await end_tasks(asking)
            await model.close()

    async def _rollouts(self, model: Model, server: ServerSupervisor, stages: ServerStages, exports: Exports) -> Report:
        spec = self.context.spec
        self.context.enter(Stage.ROLLOUTS, f"running {len(spec.own_rows)} rows x {self.plan.attempts} attempts")
        await self._open_journal()
        try:
            rows = await self._agree_with_platform()
            async with exporting(self.context, exports, self.journal), ArtifactSender(self.context) as artifacts:
                evaluation = Evaluation(
                    self.plan,
                    rows.all(spec.own_rows),
                    None,
                    journal=self.journal,
                    observer=ProgressObserver(self.context, self.journal, artifacts),
                    selected=len(spec.own_rows),
                    dataset_rows=spec.dataset_rows,
                    hashes={"agent": spec.commit_sha},
                    spending=self.shared.spending,
                )
                return await self._evaluate_on(server, evaluation, model, stages)
        finally:
            self.journal.close()

    async def _evaluate_on(
        self, server: ServerSupervisor, evaluation: Evaluation, model: Model, stages: ServerStages
    ) -> Report:
        proxy = ModelProxy(model, sandboxes=server.command.sandboxes)
        await proxy.open()
        try:
            async with server.running(proxy, evaluation.plan) as served:
                self._started_rollouts = True
                evaluation.agent, evaluation.model = stages.agent(served, proxy, evaluation.plan), model
                evaluation.stop, evaluation.wait_for_room = self.context.stop, self.context.wait_for_room
                evaluation.limiter = self.shared.limiter
                self.context.before_heartbeat = lambda: self._count_in_flight(evaluation)
                evaluating = asyncio.create_task(evaluation.run())
                try:
                    await wait_for_first(evaluating, server.failed)
                    if evaluating.done():
                        return evaluating.result()
                    raise server.failed.result()
                finally:
                    self.context.before_heartbeat, self.context.progress.in_flight = lambda: None, {}
                    await end_tasks(evaluating)
        finally:
            await proxy.close()

    def _count_in_flight(self, evaluation: Evaluation) -> None:
        if evaluation.journal is not None:
            self.context.progress.in_flight = evaluation.journal.pulse().get("stages") or {}

    async def _open_journal(self) -> None:
        """Open the journal; wait while an earlier job of this run has yet to notice that its lease is lost."""
        for _ in range(JOURNAL_TRIES):
            try:
                return self.journal.open(self.plan)
            except Conflict:
                await asyncio.sleep(JOURNAL_EVERY_S)
        self.journal.open(self.plan)

    async def _agree_with_platform(self) -> JobRows:
        stored = await self.context.reporter.list_stored_keys()
        rows = await JobRows.read(self.context, stored)
        settle(self.journal, rows.known.keys)
        local = self.journal.finished()
        if missing_here := stored - set(local):
            fetched = 0
            async for body in self.context.reporter.iterate_rollouts():
                rollout = Rollout.model_validate(body)
                if rollout.key in missing_here:
                    self.journal.append(rollout)
                    fetched += 1
            self.context.log.write("rollouts", f"{fetched} finished rollouts were fetched from the platform")
        sent = 0
        for line in self.journal.lines():
            if key_of(line) not in stored:
                await self.context.wait_for_room()
                self.context.reporter.rollout(orjson.dumps(line))
                sent += 1
        if len(local):
            self.context.log.write(
                "rollouts", f"resuming: {len(local)} rollouts are finished, {sent} of them are sent again"
            )
        return rows


@dataclass(eq=False, repr=False)
class ProgressObserver(Observer):
    _context: JobContext
    _journal: Journal
    _artifacts: ArtifactSender
    _done: int = 0
    _total: int = 0

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


def _give_up(report: Report) -> Failure:
    commonest = max(report.failures, key=lambda failure: failure.count, default=None)
    message = f"the run ended early: {report.stopped}"
    if commonest is None:
        return Failure(phase=Phase.SETUP, category=Category.UNKNOWN, message=message)
    message = f"{message}; {commonest.count} rollouts failed like this: {commonest.example}"
    fix = "fix the cause, then retry the run; successful rollouts are kept"
    return Failure(phase=commonest.phase, category=commonest.category, message=message, fix=fix)


WORTH_SAYING_S = 0.5


class SharedLimits:
    """Concurrency, budget and rate limits that the jobs of a run share through heartbeats."""

    def __init__(self, context: JobContext, plan: EvalPlan) -> None:
        self._context = context
        self.limiter = Limiter(context.spec.shard.concurrency or plan.concurrency, adaptive=plan.adaptive)
        self.spending = Spending(plan)
        self.model: Model | None = None
        self._refused_until = 0.0
        context.on_reply = self.on_heartbeat_reply

    def answered(self, seconds: float) -> None:
        self.limiter.answered(seconds)

    def rate_limited(self, seconds: float) -> None:
        self.limiter.rate_limited(seconds)
        self._refused_until = max(self._refused_until, time.monotonic() + seconds)
        self._say()
        self._context.changed.set()

    def on_heartbeat_reply(self, reply: HeartbeatReply) -> None:
        if reply.concurrency:
            self.limiter.resize(reply.concurrency)
        if reply.elsewhere is not None:
            self.spending.elsewhere = reply.elsewhere
        if reply.pause_s > 0 and isinstance(self.model, RetryingModel):
            self.model.hold(reply.pause_s)
        self._say()

    def _say(self) -> None:
        """Report only refusals met here: repeating those of other jobs would never end."""
        left = self._refused_until - time.monotonic()
        self._context.progress.pause_s = round(left, 2) if left >= WORTH_SAYING_S else 0.0


T = TypeVar("T")


class OptimizeJob(EvaluationJob):
    def __init__(self, context: JobContext, config: OptimizeConfig) -> None:
        super().__init__(context, config)
        load_gepa()
        self._options = config.optimize
        self.plan.budget.max_cost_usd = self._options.max_cost
        self._task: asyncio.Task[object] | None = None
        self._is_cut = False

    def report(self) -> Report | None:
        rollouts = (rollout for rollout in self.journal.rollouts() if rollout.step == 0)
        report = summarize(rollouts, self.plan, rows=self._options.test_rows)
        return report if report.completed == report.total else None

    async def _evaluate(
        self, model: Model, prepared: PreparedRollout, stages: ServerStages, exports: Exports
    ) -> JobResult:
        context, self._loop = self.context, asyncio.get_running_loop()
        self._model, self._prepared, self._stages = model, prepared, stages
        await self._open_journal()
        async with ArtifactSender(context) as artifacts:
            self._observer = SearchObserver(context, self.journal, artifacts)
            self._search = await self._prepare_search()
            searching = asyncio.ensure_future(asyncio.to_thread(self._search.run))
            try:
                optimization = await asyncio.shield(searching)
            except OsmosisError:
                if context.stop.is_set():
                    return JobResult(status=RunStatus.STOPPED)
                raise
            finally:
                self._is_cut = True
                if self._task is not None:
                    self._task.cancel()
                await asyncio.wait({searching})
                self.journal.close()
        await context.reporter.post("optimization", optimization)
        return JobResult(status=RunStatus.FINISHED, report=self.report())

    async def _prepare_search(self) -> Search:
        context, options, checkout = self.context, self._options, self._prepared.found
        self.journal.drop({rollout.key for rollout in self.journal.rollouts() if is_outage(rollout)})
        self._rows = await self._agree_with_platform()
        self._observer.begin(options.max_rollouts, len(self.journal.finished()))
        answers = context.work_dir / "reflections.json"
        sent = context.spec.optimization.answers if context.spec.optimization else []
        if len(sent) > (len(orjson.loads(answers.read_bytes())) if answers.exists() else 0):
            write_json(answers, sent)
        model = parse_model(options.reflection_model, option="reflection_model")
        check_price(self.plan.model_copy(update={"model": model}))
        reflection = Reflection(model, key_for(model, context.secrets, None), answers)
        reflection.run = self._wait
        texts, rollout = read_texts(checkout.rollout_dir, options), checkout.rollout_dir.relative_to(checkout.source)
        return Search(
            self.plan,
            options,
            Candidates(context.work_dir / "rollout" / "candidates", checkout.source, rollout, texts, keep_links=True),
            split_rows(self._rows.known.keys, options, self.plan.attempts),
            reflection,
            self._rows.all,
            self._read_rollouts,
            lambda name, folder, rows: self._wait(self._run_candidate(name, folder, rows)),
            lambda: self.plan.score_bounds,
            self._report_progress,
            f"osmosis eval resume {context.spec.run_name}",
        )

    def _report_progress(self, optimization: Optimization, text: str) -> None:
        if text:
            self.context.log.write("optimize", text)
        self._wait(self.context.reporter.post("optimization", optimization))

    def _wait(self, work: Coroutine[object, object, T]) -> T:
        return asyncio.run_coroutine_threadsafe(self._unless_cut(work), self._loop).result()

    async def _unless_cut(self, work: Coroutine[object, object, T]) -> T:
        self._task = asyncio.current_task()
        if self._is_cut:
            work.close()
            raise asyncio.CancelledError
        return await work

    def _read_rollouts(self, name: str) -> list[Rollout]:
        return [rollout for rollout in self.journal.rollouts() if rollout.hashes["agent"] == name]

    async def _run_candidate(self, name: str, folder: Path, rows: Sequence[int]) -> str | None:
        is_test = name != SEED and rows == self._search.rows["test"]
        step, stored = 0 if is_test else self._search.step_of(name), StoredFigures(Summary(self.plan))
        for rollout in self._read_rollouts(name):
            if rollout.row_index in rows:
                stored.summary.add(rollout)
                stored.done.add(rollout.key)
        evaluation = Evaluation(self.plan, self._rows.all(rows), None, journal=self.journal, selected=len(rows))
        evaluation.step, evaluation.stored, evaluation.hashes = step, stored, {"agent": name}
        evaluation.observer = self._observer
        experiment = self.config.experiment
        checkout = locate(folder, self.context.spec.commit_sha, experiment.rollout, experiment.file)
        try:
            server = await self._stages.start(replace(self._prepared, found=checkout))
        except JobFailed as problem:
            if name == SEED:
                raise
            self.context.log.write("optimize", f"candidate {name} cannot be loaded: {problem.message}", "warning")
            raise LoadError(problem.message) from problem
        self.context.enter(Stage.ROLLOUTS, f"candidate {name}: {len(rows)} rows")
        try:
            return (await self._evaluate_on(server, evaluation, self._model, self._stages)).stopped
        finally:
            await server.stop()


class SearchObserver(ProgressObserver):
    begin = ProgressObserver.started
    started = Observer.started
    finished = Observer.finished

    def rollout(self, rollout: Rollout, running: Report | None) -> None:
        if not is_outage(rollout):
            super().rollout(rollout, None)


def open_job(context: JobContext) -> EvaluationJob:
    config = context.config_of(EvalConfig, "the config of this run is not that of an eval")
    return OptimizeJob(context, config) if isinstance(config, OptimizeConfig) else EvaluationJob(context, config)
