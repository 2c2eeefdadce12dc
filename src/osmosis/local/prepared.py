"""A local run that can start: everything that could be wrong with it was looked for. `Prepared.run` spends.

Questions (inputs have changed, the forecast of a pilot) are asked through `confirm`, which the caller brings; None:
nobody can be asked.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import field, replace
from pathlib import Path
from typing import Protocol

from osmosis.base.light_dataclass import dataclass
from osmosis.base.paths import cache_dir
from osmosis.base.redact import Redactor
from osmosis.datasets.scan import DatasetFacts, read_rows
from osmosis.engine.agent_files import AgentFiles
from osmosis.engine.evaluate import Options, evaluate
from osmosis.engine.journal import Journal
from osmosis.engine.key_set import KeySet
from osmosis.engine.limiter import Limiter
from osmosis.engine.observer import Observer, Silent
from osmosis.engine.resume import ResumePlan, apply
from osmosis.engine.scoring import Scorer, close_scorers
from osmosis.engine.task import RolloutFn
from osmosis.errors import Conflict, InteractiveRequired, OsmosisError, UsageError, ValidationError
from osmosis.llm import Completion, Model, Signals, open_model, probe
from osmosis.metrics.forecast import forecast
from osmosis.records.dataset import Row
from osmosis.records.plan import EvalPlan
from osmosis.records.report import Report

from .forked import Forked
from .request import Request
from .rollout_source import RolloutSource
from .run import Run
from .workers import in_workers

_FILES_EVERY_S = 2.0

Confirm = Callable[[str], bool]
"""Asks a person and waits for the answer; called in a thread of its own while a run goes on."""


class Watcher(Observer, Protocol):
    """Who started a run: hears of rollouts, as the engine's observer does, and of the run as a whole."""

    def say(self, text: str, *, keep: bool = False) -> None:
        """A line about the run. `keep`: worth repeating beside the report."""
        ...


class Quiet(Silent):
    """Hears everything, does nothing."""

    def say(self, text: str, *, keep: bool = False) -> None: ...


class Declined(OsmosisError):
    """The person does not want the plan that was shown. Nothing was changed."""


@dataclass(frozen=True)
class Prepared:
    """A run that can start: every part is there, checked, and nothing has been spent."""

    request: Request
    plan: EvalPlan
    """The request's, with the dataset's hash and where the run comes from."""
    source: RolloutSource | None
    """None: nothing is run (a regrade)."""
    scorers: tuple[Scorer, ...]
    facts: DatasetFacts
    hashes: Mapping[str, str]
    resume: ResumePlan
    journal: Journal | None
    """None: nothing is kept."""
    redactor: Redactor
    files: AgentFiles | None = None
    """What the agent is made of; None where it is not in this process."""
    key: str | None = field(default=None, repr=False)
    baselines: tuple[Prepared, ...] = ()
    forked: tuple[Forked, ...] = ()
    """Workers that are there already."""

    @property
    def asks_model(self) -> bool:
        """Whether anything is left that a model has to answer."""
        owed = self.resume.owed or len(self.resume.rerun) or len(self.resume.retry)
        return self.source is not None and bool(owed)

    @property
    def remarks(self) -> list[str]:
        """What a person should know before the run starts, baselines included."""
        found = []
        if self.facts.bad and self.source is not None:
            shown = "; ".join(map(str, self.facts.bad[:3]))
            found.append(f"invalid rows skipped ({self.facts.bad_count}): {shown}")
        if self.journal is not None and self.source is not None and (damage := self.journal.damage()):
            found.append(damage)
        resume = self.resume
        if self.source is not None and (resume.reuse or resume.drifted or len(resume.retry)):
            found.append(f"run {self.plan.name}: {resume.line()}")
        if self.source is not None and (used_up := self._used_up()):
            found.append(
                f"{used_up}: no rollout is started; a larger --max-cost or --max-tokens-total continues the run"
            )
        for other in self.baselines:
            found += [self.redactor.text(line) for line in other.remarks]
        return [self.redactor.text(line) for line in found]

    def _used_up(self) -> str | None:
        """Which limit of the budget is reached by what is stored, when more is owed."""
        if self.resume.taken is None or not self.resume.owed:
            return None
        stored = self.resume.taken.summary
        return self.plan.budget.used_up(stored.total_cost_usd or 0.0, stored.total_tokens)

    def agree(self, confirm: Confirm | None) -> None:
        """Asks when stored results would be thrown away. Raises `Declined`, or `Conflict` when nobody can be asked."""
        for one in (self, *self.baselines):
            if one.source is None or not one.resume.drifted:
                continue
            if confirm is None:
                raise Conflict(
                    f"the inputs of run {one.plan.name} have changed: {one.resume.line()}",
                    hint="pass --yes (accept_changes=True in Python), or use another name to start a new run",
                    resume=one.resume.to_dict(),
                )
            if not confirm("Continue with this plan?"):
                raise Declined("cancelled; nothing was changed")

    def rows(self) -> Iterator[Row]:
        """The selected rows, read anew."""
        return rows_of(self.request.dataset, self.plan, self.facts)

    def open_model(self, signals: Signals | None = None) -> Model:
        """The plan's model; `signals` hears how calls go."""
        return open_model(
            self.plan.model,
            api_key=self.key,
            retry=self.plan.retry,
            timeout_s=self.plan.timeouts.model_s,
            cache_dir=cache_dir(self.request.environ) / "answers" if self.plan.cache else None,
            signals=signals,
        )

    @asynccontextmanager
    async def rollouts(self, model: Model) -> AsyncIterator[RolloutFn]:
        """How attempts become rollouts, while the block lasts. Only for what is run."""
        assert self.source is not None
        async with self.source.rollouts(self.plan, model) as rollout_fn:
            yield rollout_fn

    @property
    def in_workers(self) -> bool:
        """Whether rollouts come back scored, from other processes."""
        return self.request.workers > 1 and self.asks_model

    def _rollout_fn(
        self, model: Model | None, limiter: Limiter, watcher: Watcher
    ) -> AbstractAsyncContextManager[RolloutFn | None]:
        if model is None:
            return nullcontext()
        if not self.in_workers:
            return self.rollouts(model)
        return in_workers(
            self.request,
            self.request.workers,
            say=watcher.stage,
            limiter=limiter if limiter.adaptive else None,
            forked=self.forked,
        )

    async def run(
        self, watcher: Watcher | None = None, *, confirm: Confirm | None = None, stop: asyncio.Event | None = None
    ) -> Run:
        """The run, then those of its baselines; a baseline that breaks keeps nothing of the others back.

        Call `agree` first. `stop` lets what is in flight finish. Raises only for what concerns the whole run.
        """
        if self.journal is None:
            raise UsageError("a run without a journal only has a report")
        watcher, stop = watcher or Quiet(), stop or asyncio.Event()
        report = await self.report(watcher, confirm=confirm, stop=stop)
        others: dict[str, Run | OsmosisError] = {}
        for one in self.baselines if not report.stopped else ():
            if stop.is_set():
                break
            model = one.plan.model
            key = model.name if model.name not in others else f"{model.name}@{model.base_url or one.plan.name}"
            watcher.say(self.redactor.text(f"baseline {key}: run {one.plan.name}"))
            try:
                others[key] = await one.run(watcher, stop=stop)
            except OsmosisError as error:
                others[key] = error
        # Failures quote what agents and score functions said.
        safe = Report.model_validate(self.redactor.data(report.to_dict())) if self.redactor else report
        return Run(self.journal.folder, self.plan, safe, others)

    async def report(
        self, watcher: Watcher, *, confirm: Confirm | None = None, stop: asyncio.Event | None = None
    ) -> Report:
        """The figures of this run alone, as they are. Secrets are taken out of what it raises."""
        limiter = Limiter(self.plan.concurrency, adaptive=self.plan.adaptive)
        model = self.open_model(limiter if limiter.adaptive else None) if self.source is not None else None
        try:
            async with self._rollout_fn(model, limiter, watcher) as rollout_fn:
                for one in (self, *self.baselines):
                    await one._probe(model if one is self else None)
                return await self._evaluate(rollout_fn, watcher, confirm, stop or asyncio.Event(), limiter)
        except OsmosisError as error:
            # An endpoint or a rollout server may say our key back to us.
            for redactor in (self.redactor, *(other.redactor for other in self.baselines)):
                error.message = redactor.text(error.message)
                error.details = redactor.data(error.details)
            raise
        finally:
            if self.journal is not None:
                self.journal.close()
            if model is not None:
                await model.close()
            await close_scorers(self.scorers)

    def close(self) -> None:
        """Lets go of the journals, for somebody else to write."""
        for one in (self, *self.baselines):
            if one.journal is not None:
                one.journal.close()
        for worker in self.forked:
            worker.close()

    async def _evaluate(
        self,
        rollout_fn: RolloutFn | None,
        watcher: Watcher,
        confirm: Confirm | None,
        stop: asyncio.Event,
        limiter: Limiter,
    ) -> Report:
        resume, plan, journal, request = self.resume, self.plan, self.journal, self.request
        if journal is not None:
            if resume.pending:
                await apply(resume, journal, plan, self.rows(), self.scorers, self.hashes)
            facts = {"local": request.facts(), "rows": self.facts.selected}
            journal.open(plan, facts={**facts, **self._known_files(journal)})
        options = Options(rows=self.facts.selected, dataset_rows=self.facts.rows, hashes=self.hashes, limiter=limiter)
        options.scored = [scorer.name for scorer in self.scorers] if self.in_workers else ()
        if request.pilot is None or not resume.owed:
            options.taken = resume.taken
        elif resume.owed > request.pilot and not resume.reuse:
            await self._pilot(request.pilot, rollout_fn, options, watcher, confirm, stop)
        looking = asyncio.create_task(self._note_files())
        try:
            return await evaluate(
                plan,
                self.rows(),
                rollout_fn,
                scorers=() if self.in_workers else self.scorers,
                journal=journal,
                observer=watcher,
                stop=stop,
                options=options,
            )
        finally:
            looking.cancel()
            if journal is not None and journal.is_open:
                journal.note(**self._known_files(journal))

    def _known_files(self, journal: Journal) -> dict[str, object]:
        """The fact of `run.json` that a resume names changed files by."""
        if self.files is None:
            return {}
        stored = journal.run().get("files") or {} if journal.exists else {}
        changed = self.resume.files
        kept = {
            part: {name: mark for name, mark in files.items() if name not in changed.get(part, ())}
            for part, files in stored.items()
        }
        return {"files": {part: {**kept.get(part, {}), **found} for part, found in self.files.now().items()}}

    async def _note_files(self) -> None:
        """While the run goes on: what was opened or imported is known even of a process that is killed."""
        journal, known = self.journal, 0
        while journal is not None and self.files is not None:
            await asyncio.sleep(_FILES_EVERY_S)
            if known != (known := self.files.seen()):
                journal.note(**self._known_files(journal))

    async def _pilot(
        self,
        size: int,
        rollout_fn: RolloutFn | None,
        options: Options,
        watcher: Watcher,
        confirm: Confirm | None,
        stop: asyncio.Event,
    ) -> None:
        """A few rollouts, spread over the rows, then what the rest will cost, and the question whether to go on."""
        plan, journal = self.plan, self.journal
        if journal is None:
            raise UsageError("a pilot needs a journal: its rollouts are part of the run")
        keys = [row.key or "" for row in self.rows()]
        chosen = random.Random(plan.selection.seed).sample(keys, min(size, len(keys)))
        pilot = replace(options, dataset_rows=None, only=KeySet((0, key, 0) for key in chosen))
        scorers = () if self.in_workers else self.scorers
        await evaluate(plan, self.rows(), rollout_fn, scorers=scorers, journal=journal, stop=stop, options=pilot)
        measured = list(journal.rollouts())
        left = self.facts.selected * plan.attempts - len(measured)
        found = forecast(measured, left, plan.concurrency, plan.attempts)
        journal.note(forecast=found.to_dict())
        watcher.say(self.redactor.text(f"pilot: {found.line()}"), keep=True)
        if stop.is_set():
            return
        question = "Run the rest?"
        if confirm is None:
            raise InteractiveRequired(
                f"this needs an answer, and there is no terminal to ask on: {question}",
                hint="pass --yes",
                prompt=question,
            )
        # In a thread: a prompt runs an event loop of its own.
        if not await asyncio.to_thread(confirm, question):
            stop.set()

    def _check_usage(self, answer: Completion | None) -> None:
        """A budget cannot be kept against an endpoint that does not say what a call used."""
        budget, limits = self.plan.budget, self.plan.limits
        kept = {
            "--max-cost": budget.max_cost_usd,
            "--max-tokens-total": budget.max_total_tokens,
            "--max-cost-per-rollout": limits.max_cost_usd,
            "--max-tokens-per-rollout": limits.max_tokens,
        }
        flag = next((flag for flag, limit in kept.items() if limit is not None), None)
        if answer is None or flag is None:
            return
        if not answer.usage.total_tokens and not answer.usage.cost_usd:
            raise ValidationError(
                f"{self.plan.model.name} does not report token usage, so {flag} cannot be enforced",
                hint="limit rows or time instead: --limit, --run-timeout",
            )

    async def _probe(self, model: Model | None) -> None:
        """One tiny call, when there is something left to ask; of a model of its own when none is open."""
        if not self.asks_model:
            return
        asked = model or self.open_model()
        try:
            answer = await probe(asked)
        finally:
            if model is None:
                await asked.close()
        self._check_usage(answer)


def rows_of(dataset: Path, plan: EvalPlan, facts: DatasetFacts) -> Iterator[Row]:
    """The rows that a plan selects, as a scan of them found them to be known; read again unless it has kept them."""
    kept = facts.kept_rows()
    if kept is not None:
        return kept
    return read_rows(
        dataset,
        plan.selection,
        skip_bad=plan.skip_bad_rows,
        require_ground_truth=plan.require_ground_truth,
        by_id=facts.by_id,
    )
