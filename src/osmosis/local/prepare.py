import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from osmosis.base.net import is_loopback
from osmosis.base.redact import Redactor
from osmosis.bridges.export_process import Exports
from osmosis.datasets.keys import SelectedRows
from osmosis.datasets.scan import DatasetFacts, check_columns, scan_dataset
from osmosis.engine import provenance
from osmosis.engine.journal import Journal
from osmosis.engine.load_agent import load_scorers
from osmosis.engine.resume import RegradePlan, ResumePlan, plan_regrade, plan_resume
from osmosis.engine.rollout_model import REWARD
from osmosis.engine.scoring import Scorer
from osmosis.errors import NotFound, UsageError, ValidationError
from osmosis.llm.providers import price_of
from osmosis.local.prepared_run import PreparedRun, RolloutSource, load_source, rows_of
from osmosis.local.run_options import RunOptions, declared_secrets, key_for
from osmosis.local.workers import check_workers
from osmosis.records.run.plan import EvalPlan


def prepare(plan: EvalPlan, options: RunOptions) -> PreparedRun:
    Exports(options.export)  # its libraries are there
    if options.regrade is not None:
        folder = options.folder(plan)
        if folder is None or not (journal := Journal(folder)).exists:
            raise NotFound(f"there is no run {plan.name}", hint="osmosis eval list")
        if not plan.score_fns:
            message = "this run has only the grader's rewards, which cannot be scored again"
            raise UsageError(message, hint="--eval-fn module:function, or: osmosis eval resume NAME --retry-failed")
        scorers = _scorers(plan, options)
        selected, dataset = SelectedRows(), options.dataset(plan)
        facts = scan_dataset(dataset, plan.selection, rows=selected)
        if not plan.skip_bad_rows:
            facts.refuse_bad(dataset)
        redactor = _redactor(plan, declared_secrets(options.secrets, options.environ))
        journal.redactor = redactor
        rows, failed_only = rows_of(dataset, plan, facts), options.regrade == "failed"
        resume = plan_regrade(journal, rows, selected, failed_only=failed_only)
        hashes = {
            **resume.hashes,
            "score": provenance.score_hash(plan.score_fns, options.base_dir, objects=options.objects(plan)),
        }
        return PreparedRun(plan, options, None, scorers, facts, hashes, resume, journal, redactor)
    main = _prepare(plan, options)
    others: list[PreparedRun] = []
    try:
        for baseline in _baseline_plans(plan, options):
            others.append(_prepare(baseline, replace(options, api_key=None, baselines=(), pilot=None, export=None)))
    except BaseException:
        for prepared in (main, *others):
            prepared.close()
        raise
    return replace(main, baselines=tuple(others))


def _prepare(plan: EvalPlan, options: RunOptions) -> PreparedRun:
    check_workers(plan, options)
    provenance.watch(options.base_dir)
    source = load_source(plan, options)
    scorers = load_scorers_of(plan, options)
    if options.needs_scores and not scorers and not source.brings_reward:
        message = "no score function or grader given"
        raise UsageError(message, hint="give --eval-fn module:function, --rubric FILE or a grader")
    folder = options.folder(plan)
    journal = None if folder is None else Journal(folder)
    selected = SelectedRows()
    facts = _scan(plan, options, selected if journal is not None and journal.exists else None)
    check_price(plan)
    declared = {scorer.name: scorer.bounds for scorer in scorers if scorer.bounds is not None}
    if source.reward_bounds is not None:
        declared[REWARD] = source.reward_bounds
    update = {
        "score_bounds": {**declared, **plan.score_bounds},
        "dataset_hash": facts.sha256,
        "provenance": {**provenance.provenance(options.base_dir), "rows_hash": facts.rows_hash},
    }
    plan = plan.model_copy(update=update)
    key = key_for(plan.model, options.environ, options.api_key)
    redactor = _redactor(plan, declared_secrets(options.secrets, options.environ, key, source.server_key))
    hashes = provenance.plan_hashes(
        plan, agent_files=source.files, base_dir=options.base_dir, objects=options.objects(plan)
    )
    if options.grader:
        named = options.grader if isinstance(options.grader, str) else options.grader.__qualname__
        hashes["agent"] = provenance.digest(hashes["agent"], named)
    resume = ResumePlan(owed=facts.selected * plan.attempts)
    files = None
    if journal is not None:
        journal.redactor = redactor
        files = _agent_files(plan, options, source)
        if journal.exists:
            journal.lock()  # from here on nobody else adds to it
            changed = files.changed(journal.run().get("files") or {}) if files is not None else {}
            retry_failed = options.retry_failed
            resume = plan_resume(journal, selected, plan, hashes, retry_failed=retry_failed, changed_files=changed)
        elif options.must_exist:
            journal.run()
    return PreparedRun(plan, options, source, scorers, facts, hashes, resume, journal, redactor, files, key)


def _scan(plan: EvalPlan, options: RunOptions, rows: SelectedRows | None) -> DatasetFacts:
    dataset = options.dataset(plan)
    facts = scan_dataset(dataset, plan.selection, require_ground_truth=plan.require_ground_truth, rows=rows, keep=True)
    if not plan.skip_bad_rows:
        facts.refuse_bad(dataset)
    if not facts.selected:
        raise ValidationError(f"{dataset} has no rows to run", hint="check --rows, --offset and --limit")
    check_columns(dataset, facts.columns, plan.group_by)
    return facts


def _agent_files(plan: EvalPlan, options: RunOptions, source: RolloutSource) -> provenance.AgentFiles | None:
    base = options.base_dir
    has_no_files = source.kind == "server" or (source.kind == "command" and not source.files)
    if has_no_files or (source.kind == "mcp" and "://" in source.target):
        return None
    named = Path(source.target) if source.kind == "mcp" else None
    folder = named or (source.files[0].parent if source.files else base)
    score = provenance.score_files(plan.score_fns, base, objects=options.objects(plan))
    return provenance.AgentFiles(base, folder, agent=source.files, score=score, others=[options.dataset(plan)])


def regraded(prepared: PreparedRun) -> tuple[int, int]:
    resume = prepared.resume
    return len(resume.regrade), resume.edited if isinstance(resume, RegradePlan) else 0


def load_scorers_of(plan: EvalPlan, options: RunOptions) -> tuple[Scorer, ...]:
    with provenance.LoadingScorers():
        return _scorers(plan, options)


def _scorers(plan: EvalPlan, options: RunOptions) -> tuple[Scorer, ...]:
    environ, functions = options.environ, options.functions
    timeout_s = plan.timeouts.score_s
    return tuple(
        load_scorers(plan.score_fns, options.base_dir, timeout_s=timeout_s, environ=environ, functions=functions)
    )


def _redactor(plan: EvalPlan, secrets: Iterable[str]) -> Redactor:
    """Return a redactor that spares the names of model, agent and run: a resume would ask another model."""
    names = (plan.model.name, plan.agent, plan.name, *plan.score_fns)
    return Redactor(value for value in secrets if not any(value in name for name in names))


def check_price(plan: EvalPlan) -> None:
    flag = "--max-cost" if plan.budget.max_cost_usd is not None else "--max-cost-per-rollout"
    if plan.budget.max_cost_usd is None and plan.limits.max_cost_usd is None:
        return
    if plan.model.kind in ("offline", "replay"):
        return
    if price_of(plan.model, local=is_loopback(plan.model.base_url)) is None:
        hint = "give --price IN,OUT (USD per million tokens), or limit tokens or rollouts instead"
        raise ValidationError(f"the price of {plan.model.name} is unknown, so {flag} cannot be enforced", hint=hint)


def _baseline_plans(plan: EvalPlan, options: RunOptions) -> Iterator[EvalPlan]:
    names = {plan.name}
    for spec in options.baselines:
        stem = f"{plan.name}--{re.sub(r'[^A-Za-z0-9._-]+', '-', spec.name)}"[:92]
        name = next(n for i in itertools.count(1) if (n := stem if i == 1 else f"{stem}-{i}") not in names)
        names.add(name)
        yield plan.model_copy(update={"name": name, "model": spec}, deep=True)
