"""One local run from plan to report: agent, dataset, scores, model, journal, pilot, loop, baselines, documents.

Everything that can be wrong is found out before the first paid call. Commands (`eval`, `eval run`, `eval resume`)
make a `LocalRun` and call `run_local`; a script may do the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...base.net import is_loopback
from ...base.redact import Redactor
from ...datasets.scan import DatasetFacts, read_rows, scan_dataset
from ...engine.evaluate import Options, evaluate
from ...engine.identity import digest, plan_hashes, provenance
from ...engine.journal import Journal, KeySet
from ...engine.limiter import Limiter
from ...engine.results import check_output, config_part, summary_part, write_results
from ...engine.resume import ResumePlan, apply, plan_resume
from ...engine.scoring import Scorer, close_scorers, load_scorers
from ...engine.task import RolloutFn
from ...errors import Conflict, OsmosisError, UsageError, ValidationError
from ...llm import Completion, Model, open_model, probe
from ...records.dataset import Row
from ...records.plan import EvalPlan, ModelSpec
from ...records.report import Report
from ..context import AppContext
from ..output import DetailResult, Mode
from ..prompts import confirm
from .baselines import prepare_baselines, probe_baselines, run_baselines
from .plan import declared_secrets, key_for, server_key
from .progress import ProgressObserver
from .show import draw_report, exit_code, next_steps
from .signals import print_aside, run_stoppable
from .source import load_source, rollouts


@dataclass
class LocalRun:
    """A plan, and what surrounds it on this machine. The key is never stored."""

    plan: EvalPlan
    base_dir: Path
    """Where modules and relative paths are looked for."""
    runs_dir: Path
    grader: str | None = None
    api_key: str | None = field(default=None, repr=False)
    server_key_env: str | None = None
    secrets: list[str] = field(default_factory=list)
    """Names of variables whose values are taken out of everything written."""
    output: Path | None = None
    fail_under: float | None = None
    yes: bool = False
    quiet: bool = False
    retry_failed: list[str] | None = None
    """Run failed rollouts again: of these categories or phases, all when empty; None = do not."""
    baselines: list[ModelSpec] = field(default_factory=list)
    pilot: int | None = None
    rollout: str | None = None
    """Of this workspace, when a config says what runs."""
    env: dict[str, str] = field(default_factory=dict)
    """The config's variables; nothing secret."""
    must_exist: bool = False
    """A resume: the run has to be there."""

    @property
    def folder(self) -> Path:
        return self.runs_dir / self.plan.name

    @property
    def dataset(self) -> Path:
        return self.base_dir / Path(self.plan.dataset).expanduser()

    def facts(self) -> dict[str, Any]:
        """What a resume needs beside the plan; stored in `run.json`."""
        return {
            "base_dir": str(self.base_dir),
            "grader": self.grader,
            "server_key_env": self.server_key_env,
            "secrets": self.secrets,
            "rollout": self.rollout,
            "env": self.env,
        }


def runs_dir(ctx: AppContext) -> Path:
    """`.osmosis/runs` of the workspace, else of the current folder."""
    from ...errors import WorkspaceRequired

    try:
        root = ctx.workspace_root()
    except WorkspaceRequired:
        root = ctx.cwd
    return root / ".osmosis" / "runs"


def open_run(ctx: AppContext, name: str) -> Journal:
    """The journal of a run, by name or by path."""
    from ...errors import NotFound

    folder = runs_dir(ctx) / name
    if not (folder / "run.json").exists() and (ctx.path(name) / "run.json").exists():
        folder = ctx.path(name)
    journal = Journal(folder)
    if not journal.exists:
        known = sorted(p.parent.name for p in runs_dir(ctx).glob("*/run.json"))
        listed = f"; there are: {', '.join(known[-8:])}" if known else ""
        raise NotFound(f"there is no run {name!r} in {runs_dir(ctx)}{listed}", hint="give the name of a local run")
    return journal


def run_local(ctx: AppContext, run: LocalRun) -> DetailResult | int:
    """Runs the plan here and returns what there is to show."""
    if run.output is not None:
        check_output(run.output)
        if run.output.resolve() == run.dataset.resolve():
            raise ValidationError(f"-o {run.output} is the dataset itself", hint="choose another file")
    session = Session(ctx, run)
    try:
        with print_aside():
            return _run(session)
    except _Declined:
        session.say("cancelled: nothing was changed")
        return 0
    except OsmosisError as error:
        # An endpoint or a rollout server may say our key back to us.
        for redactor in [session.redactor, *(beside.redactor for beside in session.baselines)]:
            error.message = redactor.text(error.message)
            error.details = redactor.data(error.details)
        raise


def _run(session: Session) -> DetailResult | int:
    run = session.run
    session.prepare()
    session.baselines = prepare_baselines(session)
    report, interrupted = run_stoppable(session.go, session.say)
    more: dict[str, Any] = {}
    if session.baselines and not report.stopped and not interrupted:
        more["baselines"], interrupted = run_baselines(session)
    if run.output is not None:
        write_results(run.output, session.journal, session.plan, report, **more)
    return _result(session, report, interrupted, more)


def without_secrets(report: Report, redactor: Redactor) -> Report:
    """The report as it may be shown: failures quote what agents and score functions said."""
    return Report.model_validate(redactor.data(report.to_dict())) if redactor else report


class _Declined(Exception):
    """The person does not want the plan that was shown."""


class Session:
    """The parts of one run, made in the order in which they can fail for free."""

    def __init__(self, ctx: AppContext, run: LocalRun) -> None:
        self.ctx = ctx
        self.run = run
        self.plan = run.plan
        self.notes: list[str] = []
        self.scorers: list[Scorer] = []
        self.facts = DatasetFacts()
        self.row_hashes: dict[int, str] = {}
        self.hashes: dict[str, str] = {}
        self.resume = ResumePlan()
        self.key: str | None = None
        self.redactor = Redactor()
        self.baselines: list[Session] = []

    def prepare(self) -> None:
        """Loads and checks everything that costs nothing."""
        run, plan, environ = self.run, self.plan, self.ctx.environ
        self.source, files = load_source(plan.agent, run.base_dir, environ, grader=run.grader)
        self.scorers = load_scorers(plan.score_fns, run.base_dir, timeout_s=plan.timeouts.score_s, environ=environ)
        if not self.scorers and not self._brings_reward():
            raise UsageError(
                "nothing scores these rollouts", hint="give --eval-fn module:function, --rubric FILE or a grader"
            )
        self.journal = Journal(run.folder)
        stored = self.journal.exists
        self.facts = scan_dataset(
            run.dataset,
            plan.selection,
            require_ground_truth=plan.require_ground_truth,
            row_hashes=self.row_hashes if stored else None,
        )
        if not plan.skip_bad_rows:
            self.facts.refuse_bad(run.dataset)
        elif self.facts.bad:
            self.say(f"{self.facts.bad_count} bad rows are left out: {'; '.join(map(str, self.facts.bad[:3]))}")
        for warning in self.facts.warnings() if not run.quiet else ():
            self.ctx.output.warn("DATASET", self.redactor.text(warning["message"]))
        if not self.facts.selected:
            raise ValidationError(f"{run.dataset} has no row to run", hint="check --rows, --offset and --limit")
        self.key = key_for(plan.model, environ, run.api_key)
        self.source.server_key = server_key(run.server_key_env, environ)
        self.redactor = Redactor(declared_secrets(run.secrets, environ, self.key, self.source.server_key))
        self._check_budget()
        plan.dataset_hash = self.facts.sha256
        plan.provenance = {**provenance(run.base_dir), "rows_hash": self.facts.rows_hash}
        self.hashes = plan_hashes(plan, agent_files=files, base_dir=run.base_dir)
        if run.grader:
            self.hashes["agent"] = digest(self.hashes["agent"], run.grader)
        self.journal.redactor = self.redactor
        self._take_up()

    def _brings_reward(self) -> bool:
        return self.source.kind == "server" or (self.source.agent is not None and bool(self.source.agent.graded))

    def _check_budget(self) -> None:
        if self.plan.budget.max_cost_usd is None or self.plan.model.kind in ("offline", "replay"):
            return
        from ...llm.pricing import price_of

        local = is_loopback(self.plan.model.base_url)
        if price_of(self.plan.model, local=local) is None:
            raise ValidationError(
                f"the price of {self.plan.model.name} is unknown, so --max-cost cannot be kept",
                hint="give --price IN,OUT (USD per million tokens), or limit --max-tokens-total",
            )

    def _check_usage(self, answer: Completion | None) -> None:
        """A budget cannot be kept against an endpoint that does not say what a call used."""
        budget = self.plan.budget
        if answer is None or (budget.max_cost_usd is None and budget.max_total_tokens is None):
            return
        if not answer.usage.total_tokens and not answer.usage.cost_usd:
            flag = "--max-cost" if budget.max_cost_usd is not None else "--max-tokens-total"
            raise ValidationError(
                f"{self.plan.model.name} does not say what a call uses, so {flag} cannot be kept",
                hint="limit the rows or the time: --limit, --run-timeout",
            )

    def _take_up(self) -> None:
        """Looks at what the journal holds and shows what will happen to it; asks when something is thrown away."""
        if not self.journal.exists:
            if self.run.must_exist:
                self.journal.run()
            self.resume.owed = self.facts.selected * self.plan.attempts
            return
        self.journal.lock()  # from here on nobody else adds to it
        self.resume = plan_resume(
            self.journal, self.row_hashes, self.plan, self.hashes, retry_failed=self.run.retry_failed
        )
        if self.resume.reuse or self.resume.drifted or len(self.resume.retry):
            self.say(f"run {self.plan.name}: {self.resume.line()}")
        if self.resume.drifted:
            if not self.run.yes and not self.ctx.interactive:
                raise Conflict(
                    f"the inputs of run {self.plan.name} have changed: {self.resume.line()}",
                    hint="--yes does that; another --name starts anew and keeps this run",
                    resume=self.resume.to_dict(),
                )
            if not confirm(self.ctx, "Go on with this plan?", yes=self.run.yes):
                raise _Declined

    @property
    def asks_model(self) -> bool:
        """Whether anything is left that a model has to answer."""
        return bool(self.resume.owed or len(self.resume.rerun) or len(self.resume.retry))

    def rows(self) -> Iterator[Row]:
        """The selected rows, read anew."""
        return read_rows(
            self.run.dataset,
            self.plan.selection,
            skip_bad=self.plan.skip_bad_rows,
            require_ground_truth=self.plan.require_ground_truth,
        )

    def say(self, text: str) -> None:
        if not self.run.quiet:
            self.ctx.output.say(self.redactor.text(text))

    async def go(self, stop: asyncio.Event) -> Report:
        """The run itself."""
        run, plan = self.run, self.plan
        limiter = Limiter(plan.concurrency, adaptive=plan.adaptive)
        if self.ctx.options.offline and plan.model.base_url:
            from ..environment import allow_host

            allow_host(plan.model.base_url)
        model = self.open_model(plan.model, self.key, limiter)
        observer = ProgressObserver(self.ctx.output, quiet=run.quiet)
        try:
            async with rollouts(self.source, plan, model) as rollout_fn:
                if self.asks_model:
                    self._check_usage(await probe(model))
                await probe_baselines(self.baselines)
                if self.resume.drifted or len(self.resume.retry):
                    self.journal.lock()
                    await apply(self.resume, self.journal, plan, self.rows(), self.scorers, self.hashes)
                self.journal.open(plan, facts={"local": run.facts(), "rows": self.facts.selected})
                options = Options(
                    rows=self.facts.selected, dataset_rows=self.facts.rows, hashes=self.hashes, limiter=limiter
                )
                if not (run.pilot and self.resume.owed):
                    options.taken = self.resume.taken
                if run.pilot and self.resume.owed > run.pilot and not self.resume.reuse:
                    await self._pilot(rollout_fn, options, stop)
                return await evaluate(
                    plan,
                    self.rows(),
                    rollout_fn,
                    scorers=self.scorers,
                    journal=self.journal,
                    observer=observer,
                    stop=stop,
                    options=options,
                )
        finally:
            observer.close()
            self.journal.close()
            await model.close()
            await close_scorers(self.scorers)

    def open_model(self, spec: ModelSpec, key: str | None, limiter: Limiter | None = None) -> Model:
        cache = None
        if self.plan.cache:
            from ...base.paths import cache_dir

            cache = cache_dir(self.ctx.environ) / "answers"
        return open_model(
            spec,
            api_key=key,
            retry=self.plan.retry,
            timeout_s=self.plan.timeouts.model_s,
            cache_dir=cache,
            signals=limiter if limiter is not None and limiter.adaptive else None,
        )

    async def _pilot(self, rollout_fn: RolloutFn, options: Options, stop: asyncio.Event) -> None:
        """A few rollouts, spread over the rows, then what the rest will cost, and the question whether to go on."""
        import random

        from ...metrics.forecast import forecast

        assert self.run.pilot is not None
        plan = self.plan
        indices = [row.index for row in self.rows()]
        chosen = random.Random(plan.selection.seed).sample(indices, min(self.run.pilot, len(indices)))
        only = KeySet((index, 0) for index in chosen)
        pilot = Options(rows=options.rows, hashes=options.hashes, limiter=options.limiter, only=only)
        await evaluate(
            plan, self.rows(), rollout_fn, scorers=self.scorers, journal=self.journal, stop=stop, options=pilot
        )
        measured = list(self.journal.rollouts())
        left = self.facts.selected * plan.attempts - len(measured)
        found = forecast(measured, left, plan.concurrency)
        self.journal.note(forecast=found.to_dict())
        self.say(f"pilot: {found.line()}")
        self.notes.append(f"pilot: {found.line()}")
        if stop.is_set():
            return
        # In a thread: a prompt runs an event loop of its own.
        if not await asyncio.to_thread(confirm, self.ctx, "Go on with the rest?", yes=self.run.yes):
            stop.set()


def _result(session: Session, report: Report, interrupted: bool, more: dict[str, Any]) -> DetailResult | int:
    run, plan = session.run, session.plan
    code = 130 if interrupted else exit_code(report, run.fail_under)
    primary = report.primary
    if run.fail_under is not None and code == 1 and primary is not None and primary.mean is not None:
        session.notes.append(f"mean {primary.mean:.4f} against --fail-under {run.fail_under:g}")
    if run.output is not None:
        session.notes.append(f"results: {run.output}")
    if run.quiet and session.ctx.mode is not Mode.JSON:
        return code
    data = {
        "name": plan.name,
        "journal": str(run.folder),
        "output": str(run.output) if run.output else None,
        "warnings": session.facts.warnings(),
        "config": config_part(session.journal, plan),
        "summary": summary_part(report),
        **more,
    }
    shown = without_secrets(report, session.redactor)
    notes = [session.redactor.text(note) for note in session.notes]
    return DetailResult(
        session.redactor.data(data),
        exit_code=code,
        next_steps=next_steps(plan, report),
        human=lambda console: draw_report(console, plan, shown, notes=notes),
    )
