"""An eval run, stage by stage: checkout, model, environment, rollout server, rollouts, report.

The one loop is `engine.evaluate`; here is only what surrounds it in a job. What an earlier attempt finished is in
the journal, what the platform has is fetched into it, and what the platform lacks is sent again: nothing runs twice.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import uv

from osmosis._version import __version__
from osmosis.base.wheel import Wheel, build_wheel
from osmosis.datasets.keys import SelectedRows
from osmosis.datasets.scan import read_rows, scan_dataset
from osmosis.engine.evaluate import Options, evaluate
from osmosis.engine.journal import Journal, key_of
from osmosis.engine.resume import settle
from osmosis.errors import Conflict
from osmosis.llm import Model
from osmosis.metrics.summary import summarize
from osmosis.records.config import EvalConfig
from osmosis.records.plan import EvalPlan, Selection
from osmosis.records.report import Report
from osmosis.records.rollout import Rollout
from osmosis.records.run import Stage
from osmosis.records.wire import ARTIFACT_VARIABLE
from osmosis.serve.drive.traingate import TrainGate

from .checkout import Checkout, check_out, locate
from .entrypoint import Entrypoint, command_for, look_at
from .environ import rollout_environ
from .environment import Builder, Environment
from .job import JobContext, JobFailed
from .model_probe import check_model, open_and_probe
from .project import read_project
from .supervisor import EndedWithoutServing, ServerCommand, ServerSupervisor

JOURNAL_TRIES = 60
JOURNAL_EVERY_S = 0.5


class EvalRun:
    """The evaluation of one job. `report()` works at any time: also for a run that was stopped or failed."""

    def __init__(self, context: JobContext, config: EvalConfig) -> None:
        self.context = context
        self.config = config
        spec = context.spec
        check_model(config)
        self.plan = EvalPlan.from_config(
            config,
            name=spec.run_name,
            dataset=config.experiment.dataset,
            selection=Selection(rows=spec.rows),
            provenance={"commit_sha": spec.commit_sha, "osmosis": __version__},
        )
        self.journal = Journal(context.work_dir / "journal", redactor=context.redactor)
        self.started_rollouts = False

    async def go(self) -> Report:
        """All stages. Raises `JobFailed` with the stage's failure."""
        found = await self._checkout()
        model = await self._preflight()
        try:
            wheel = await asyncio.to_thread(build_wheel, self.context.cache_dir)
            environment = await self._environment(found, wheel)
            server = await self._start(found, environment, wheel)
            try:
                return await self._rollouts(model, server)
            finally:
                await server.stop()
        finally:
            await model.close()

    def report(self) -> Report | None:
        """The figures of what is finished so far; None before the first rollout."""
        if not self.journal.rollouts_path.exists():
            return None
        made = summarize(self.journal.rollouts(), self.plan, rows=len(self.context.spec.rows))
        made.dataset_rows = self.context.spec.dataset_rows
        made.stopped = "cut off"
        return made if made.completed else None

    async def _checkout(self) -> Checkout:
        spec, experiment = self.context.spec, self.config.experiment
        self.context.enter(Stage.CHECKOUT, f"checking out commit {spec.commit_sha[:12]}")
        source = await check_out(
            spec.repository,
            spec.commit_sha,
            self.context.work_dir / "source",
            environ={k: v for k, v in self.context.environ.items() if k not in spec.secret_names},
            log=self.context.log,
        )
        return locate(source, spec.commit_sha, experiment.rollout, experiment.entrypoint)

    async def _preflight(self) -> Model:
        name = self.plan.model.name
        stand_in = " (offline model: rule-based, makes seeded mistakes)" if self.plan.model.kind == "offline" else ""
        self.context.enter(Stage.PREFLIGHT, f"checking the model {name}{stand_in} with one call")
        return await open_and_probe(self.plan, self.context.environ)

    async def _environment(self, found: Checkout, wheel: Wheel) -> Environment:
        label = f"rollouts/{self.config.experiment.rollout}"
        self.context.enter(Stage.ENVIRONMENT, f"preparing the environment of {label}")
        hidden = {*self.context.spec.secret_names, *self.config.env}
        builder = Builder(
            uv=uv.find_uv_bin(),
            cache_dir=self.context.cache_dir,
            wheel=wheel,
            environ={k: v for k, v in self.context.environ.items() if k not in hidden},
            log=self.context.log,
            started=self.context.leftovers.add,
        )
        project = read_project(found.rollout_dir, label)
        return await builder.environment(
            project, commit_sha=found.commit_sha, install_to=self.context.work_dir / "installed"
        )

    async def _start(self, found: Checkout, environment: Environment, wheel: Wheel) -> ServerSupervisor:
        label = f"rollouts/{self.config.experiment.rollout}/{self.config.experiment.entrypoint}"
        self.context.enter(Stage.START, f"starting the rollout server: {label}")
        seen = look_at(found.entrypoint.read_text(encoding="utf-8", errors="replace"))
        environ = rollout_environ(
            self.context.environ,
            env=self.config.env,
            secret_names=self.context.spec.secret_names,
            venv=str(environment.folder),
        )
        paths = [str(found.rollout_dir), *([str(environment.project)] if environment.project else [])]
        environ["PYTHONPATH"] = ":".join([*paths, *([environ["PYTHONPATH"]] if "PYTHONPATH" in environ else [])])
        environ[ARTIFACT_VARIABLE] = str(self.context.work_dir / "artifacts")
        self.plan.provenance.update(python=environment.python_version, osmosis_of_rollout=environment.osmosis_version)

        async def started(entrypoint: Entrypoint) -> ServerSupervisor:
            argv = command_for(entrypoint, found.entrypoint, found.rollout_dir, environment, wheel)
            command = ServerCommand(argv, found.rollout_dir, environ, label)
            server = ServerSupervisor(command, self.context.log, self.context.leftovers)
            await server.start()
            return server

        try:
            return await started(seen)
        except EndedWithoutServing as problem:
            if seen.kind == "module" or environment.osmosis_version != wheel.version:
                raise
            self.context.log.write("start", "it ended without serving: serving the objects it defines instead")
            try:
                return await started(Entrypoint("module", seen.app))
            except JobFailed:
                raise problem from None

    async def _rollouts(self, model: Model, server: ServerSupervisor) -> Report:
        spec = self.context.spec
        self.context.enter(Stage.ROLLOUTS, f"running {len(spec.rows)} rows x {self.plan.attempts} attempts")
        await self._open_journal()
        gate = TrainGate(model)
        await gate.start()
        try:
            by_id = await self._agree_with_platform()
            async with server.running(gate, self.plan) as rollout:
                rows = read_rows(Path(spec.dataset_path), self.plan.selection, by_id=by_id)
                self.started_rollouts = True
                evaluating = asyncio.create_task(
                    evaluate(
                        self.plan,
                        rows,
                        rollout,
                        journal=self.journal,
                        observer=_Told(self.context, self.journal),
                        stop=self.context.stop,
                        options=Options(
                            rows=len(spec.rows), dataset_rows=spec.dataset_rows, hashes={"agent": spec.commit_sha}
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

    async def _agree_with_platform(self) -> bool:
        """Journal and platform hold the same rollouts afterwards. Whether rows are known by their ids is the answer."""
        there = await self.context.reporter.stored()
        rows = SelectedRows()
        path = Path(self.context.spec.dataset_path)
        facts = await asyncio.to_thread(scan_dataset, path, self.plan.selection, rows=rows)
        by_id = facts.by_id and (not there or any(row_key in rows.places for _, row_key, _ in there))
        # A run that version 1.0 began goes on as it began: by content.
        settle(self.journal, rows if by_id or not facts.by_id else rows.by_content())
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
                self.context.reporter.rollout(orjson.dumps(line))
                sent += 1
        if len(here):
            self.context.log.write(
                "rollouts", f"resuming: {len(here)} rollouts are finished, {sent} of them are sent again"
            )
        return by_id


class _Told:
    """The engine's observer of a job: rollouts to the platform, figures into the progress."""

    def __init__(self, context: JobContext, journal: Journal) -> None:
        self._context = context
        self._journal = journal
        self._done = 0
        self._total = 0

    def started(self, total: int, done: int) -> None:
        self._total, self._done = total, done
        self._context.advance(done, total)

    def rollout(self, rollout: Rollout, running: Report | None) -> None:
        self._done += 1
        self._context.reporter.rollout(self._journal.line(rollout))
        self._context.advance(self._done, self._total, running)

    def stage(self, text: str) -> None:
        self._context.log.write("rollouts", text, "warning")

    def finished(self, report: Report) -> None:
        self._context.advance(report.completed, report.total, report)


async def _either(evaluating: asyncio.Task[Report], failed: asyncio.Future[JobFailed]) -> Report:
    """The report, or the failure of the server under it."""
    either: set[asyncio.Future[object]] = {evaluating, failed}  # type: ignore[arg-type]
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if evaluating.done():
            return evaluating.result()
        raise failed.result()
    finally:
        if not evaluating.done():
            evaluating.cancel()
            await asyncio.gather(evaluating, return_exceptions=True)
