"""From a request to a report, in two stages: `prepare` finds everything that can be wrong before the first paid call,
`Prepared.run` spends.

A regrade is prepared like a run and asks no model. Questions (inputs have changed, the forecast of a pilot) are asked
through `confirm`, which the caller brings; None: nobody can be asked.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from osmosis.base.net import is_loopback
from osmosis.base.paths import cache_dir
from osmosis.base.redact import Redactor
from osmosis.datasets.groups import check_columns
from osmosis.datasets.keys import SelectedRows
from osmosis.datasets.scan import DatasetFacts, read_rows, scan_dataset
from osmosis.engine.agent_files import AgentFiles, loading_scorers, watch
from osmosis.engine.evaluate import Options, evaluate
from osmosis.engine.identity import digest, plan_hashes, provenance, score_files, score_hash
from osmosis.engine.journal import Journal, KeySet
from osmosis.engine.limiter import Limiter
from osmosis.engine.observer import Observer, Silent
from osmosis.engine.resume import RegradePlan, ResumePlan, apply, plan_regrade, plan_resume
from osmosis.engine.scoring import Scorer, close_scorers, load_scorers
from osmosis.engine.task import RolloutFn
from osmosis.errors import Conflict, InteractiveRequired, NotFound, OsmosisError, UsageError, ValidationError
from osmosis.llm import Completion, Model, Signals, open_model, probe
from osmosis.llm.pricing import price_of
from osmosis.metrics.forecast import forecast
from osmosis.records.dataset import Row
from osmosis.records.plan import EvalPlan
from osmosis.records.report import Report
from osmosis.serve.deferred import apps_deferred

from .forked import Forked
from .request import Request, declared_secrets, key_for
from .rollout_source import RolloutSource, load_source
from .run import Run
from .workers import check_workers, in_workers

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
        for other in self.baselines:
            found += [self.redactor.text(line) for line in other.remarks]
        return [self.redactor.text(line) for line in found]

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
        return _rows(self.request.dataset, self.plan, self.facts)

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


def prepare(request: Request, *, forked: Sequence[Forked] = ()) -> Prepared:
    """Loads and checks everything that costs nothing. Close what comes back when it is not run.

    `forked` are workers for the run; whoever made them closes them when this raises.
    """
    if request.regrade is not None:
        return _prepare_regrade(request)
    main = _prepare(request)
    others: list[Prepared] = []
    try:
        for one in _baseline_requests(request):
            others.append(_prepare(one))
    except BaseException:
        for prepared in (main, *others):
            prepared.close()
        raise
    return replace(main, baselines=tuple(others), forked=tuple(forked))


def _prepare(request: Request) -> Prepared:
    plan, environ, dataset = request.plan, request.environ, request.dataset
    check_workers(request)
    watch(request.base_dir)
    source = load_source(request)
    scorers = load_scorers_of(request)
    if request.needs_scores and not scorers and not source.brings_reward:
        raise UsageError(
            "no score function or grader given", hint="give --eval-fn module:function, --rubric FILE or a grader"
        )
    journal = Journal(request.folder) if request.folder is not None else None
    stored = journal is not None and journal.exists
    selected = SelectedRows()
    facts = scan_dataset(
        dataset,
        plan.selection,
        require_ground_truth=plan.require_ground_truth,
        rows=selected if stored else None,
    )
    if not plan.skip_bad_rows:
        facts.refuse_bad(dataset)
    if not facts.selected:
        raise ValidationError(f"{dataset} has no rows to run", hint="check --rows, --offset and --limit")
    declared = {scorer.name: scorer.bounds for scorer in scorers if scorer.bounds is not None}
    plan = plan.model_copy(update={"score_bounds": {**declared, **plan.score_bounds}})
    check_columns(dataset, facts.columns, plan.group_by)
    key = key_for(plan.model, environ, request.api_key)
    redactor = _redactor(plan, declared_secrets(request.secrets, environ, key, source.server_key))
    _check_price(plan)
    known = provenance(request.base_dir)
    plan = plan.model_copy(update={"dataset_hash": facts.sha256, "provenance": {**known, "rows_hash": facts.rows_hash}})
    hashes = plan_hashes(plan, agent_files=source.files, base_dir=request.base_dir, objects=_objects(request))
    if request.grader:
        named = request.grader if isinstance(request.grader, str) else request.grader.__qualname__
        hashes["agent"] = digest(hashes["agent"], named)
    resume = ResumePlan(owed=facts.selected * plan.attempts)
    files = _agent_files(request, source) if journal is not None else None
    if journal is not None:
        journal.redactor = redactor
        if stored:
            journal.lock()  # from here on nobody else adds to it
            changed = files.changed(journal.run().get("files") or {}) if files is not None else {}
            resume = plan_resume(
                journal, selected, plan, hashes, retry_failed=request.retry_failed, changed_files=changed
            )
        elif request.must_exist:
            journal.run()
    return Prepared(request, plan, source, scorers, facts, hashes, resume, journal, redactor, files, key)


def _agent_files(request: Request, source: RolloutSource) -> AgentFiles | None:
    """None for an agent that runs elsewhere."""
    base = request.base_dir
    if source.kind == "server" or (source.kind == "mcp" and "://" in source.target):
        return None
    named = Path(source.target) if source.kind == "mcp" else None
    folder = named or (source.files[0].parent if source.files else base)
    score = score_files(request.plan.score_fns, base, objects=_objects(request))
    return AgentFiles(base, folder, agent=source.files, score=score, others=[request.dataset])


def _prepare_regrade(request: Request) -> Prepared:
    plan = request.plan
    if request.folder is None or not (journal := Journal(request.folder)).exists:
        raise NotFound(f"there is no run {plan.name}", hint="use the name of a local run")
    if not plan.score_fns:
        raise UsageError(
            "this run has only the grader's rewards, which cannot be scored again",
            hint="give --eval-fn module:function",
        )
    scorers = _scorers(request)
    selected = SelectedRows()
    facts = scan_dataset(request.dataset, plan.selection, rows=selected)
    if not plan.skip_bad_rows:
        facts.refuse_bad(request.dataset)
    redactor = _redactor(plan, declared_secrets(request.secrets, request.environ))
    journal.redactor = redactor
    resume = plan_regrade(
        journal, _rows(request.dataset, plan, facts), selected, failed_only=request.regrade == "failed"
    )
    hashes = {**resume.hashes, "score": score_hash(plan.score_fns, request.base_dir, objects=_objects(request))}
    return Prepared(request, plan, None, scorers, facts, hashes, resume, journal, redactor)


def regraded(prepared: Prepared) -> tuple[int, int]:
    """How many rollouts a regrade scores again, and how many of them on rows edited since the run."""
    found = prepared.resume
    return len(found.regrade), found.edited if isinstance(found, RegradePlan) else 0


def load_scorers_of(request: Request) -> tuple[Scorer, ...]:
    """The score functions that the plan names; what they open while they are loaded is theirs."""
    with loading_scorers(), apps_deferred():
        return _scorers(request)


def _scorers(request: Request) -> tuple[Scorer, ...]:
    plan = request.plan
    return tuple(
        load_scorers(
            plan.score_fns,
            request.base_dir,
            timeout_s=plan.timeouts.score_s,
            environ=request.environ,
            functions=request.functions,
        )
    )


def _redactor(plan: EvalPlan, secrets: Iterable[str]) -> Redactor:
    """A value that stands in the name of the model, the agent or the run is written there by the person: taking it out
    would hide nothing, and a resume would ask another model."""
    names = (plan.model.name, plan.agent, plan.name, *plan.score_fns)
    return Redactor(value for value in secrets if not any(value in name for name in names))


def _objects(request: Request) -> dict[str, object]:
    return {**request.functions, **({request.plan.agent: request.agent} if request.agent is not None else {})}


def _rows(dataset: Path, plan: EvalPlan, facts: DatasetFacts) -> Iterator[Row]:
    return read_rows(
        dataset,
        plan.selection,
        skip_bad=plan.skip_bad_rows,
        require_ground_truth=plan.require_ground_truth,
        by_id=facts.by_id,
    )


def _check_price(plan: EvalPlan) -> None:
    """A limit in money needs a price."""
    flag = "--max-cost" if plan.budget.max_cost_usd is not None else "--max-cost-per-rollout"
    if plan.budget.max_cost_usd is None and plan.limits.max_cost_usd is None:
        return
    if plan.model.kind in ("offline", "replay"):
        return
    if price_of(plan.model, local=is_loopback(plan.model.base_url)) is None:
        raise ValidationError(
            f"the price of {plan.model.name} is unknown, so {flag} cannot be enforced",
            hint="give --price IN,OUT (USD per million tokens), or limit tokens instead",
        )


def _baseline_requests(request: Request) -> Iterator[Request]:
    """The same rows, agent and scores with another model, each in a run of its own."""
    names = {request.plan.name}
    for spec in request.baselines:
        stem = f"{request.plan.name}--{re.sub(r'[^A-Za-z0-9._-]+', '-', spec.name)}"[:92]
        name = next(n for i in itertools.count(1) if (n := stem if i == 1 else f"{stem}-{i}") not in names)
        names.add(name)
        plan = request.plan.model_copy(update={"name": name, "model": spec}, deep=True)
        yield replace(request, plan=plan, api_key=None, baselines=(), pilot=None)
