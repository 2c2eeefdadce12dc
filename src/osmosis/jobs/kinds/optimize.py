"""A search over the texts of a rollout: GEPA runs in a thread, rollouts and reflections on the loop. A candidate's
rollouts have a step of their own; the winner's test rollouts have step 0, which is what an evaluation counts."""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import orjson

from osmosis.base.files import write_json
from osmosis.bridges.export_process import Exports
from osmosis.engine.evaluate import Evaluation, Observer, StoredFigures
from osmosis.errors import LoadError, OsmosisError
from osmosis.jobs.artifacts import ArtifactSender
from osmosis.jobs.context import JobContext, JobFailed
from osmosis.jobs.kinds.evaluation import EvaluationJob, ProgressObserver
from osmosis.jobs.prepare.checkout import locate
from osmosis.jobs.server.stages import PreparedRollout, ServerStages
from osmosis.llm import Model
from osmosis.local.optimization import Candidates, Reflection, Search, is_outage, load_gepa, read_texts, split_rows
from osmosis.local.prepare import check_price
from osmosis.local.run_options import key_for, parse_model
from osmosis.metrics.summary import Summary, summarize
from osmosis.records.config.optimize import SEED, Optimization, OptimizeConfig
from osmosis.records.config.run_config import EvalConfig
from osmosis.records.run.job import JobResult, Stage
from osmosis.records.run.report import Report
from osmosis.records.run.rollout import Rollout
from osmosis.records.run.status import RunStatus

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
