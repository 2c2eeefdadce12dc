"""From a request to a run that can start: finds everything that can be wrong before the first paid call.

A regrade is prepared like a run and asks no model.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from osmosis.base.net import is_loopback
from osmosis.base.redact import Redactor
from osmosis.datasets.groups import check_columns
from osmosis.datasets.keys import SelectedRows
from osmosis.datasets.scan import scan_dataset
from osmosis.engine.agent_files import AgentFiles, loading_scorers, watch
from osmosis.engine.identity import digest, plan_hashes, provenance, score_files, score_hash
from osmosis.engine.journal import Journal
from osmosis.engine.resume import RegradePlan, ResumePlan, plan_regrade, plan_resume
from osmosis.engine.scoring import Scorer, load_scorers
from osmosis.errors import NotFound, UsageError, ValidationError
from osmosis.llm.pricing import price_of
from osmosis.records.plan import EvalPlan
from osmosis.serve.deferred import apps_deferred

from .forked import Forked
from .prepared import Prepared, rows_of
from .request import Request, declared_secrets, key_for
from .rollout_source import RolloutSource, load_source
from .workers import check_workers


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
        keep=True,
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
        journal, rows_of(request.dataset, plan, facts), selected, failed_only=request.regrade == "failed"
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
