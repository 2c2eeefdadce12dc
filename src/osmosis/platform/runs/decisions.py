"""Studies that the platform carries on: a look has an evaluation of each arm that lacks rollouts, as whoever began the
study, and the next one comes when they have ended. What lacks and what a look tells is `metrics/decide.py`."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.errors import Conflict, OsmosisError, ValidationError
from osmosis.metrics import decide as studies
from osmosis.metrics.planning import scores_by_row
from osmosis.platform import Platform, tables
from osmosis.platform.datasets import service as datasets
from osmosis.platform.runs import lifecycle, rollouts, submit, views
from osmosis.platform.workspaces import audit, service as workspaces
from osmosis.records.api.accounts import may
from osmosis.records.api.runs import NewDecision
from osmosis.records.base import utc_now
from osmosis.records.config.run_config import EvalConfig
from osmosis.records.run.rollout import Rollout
from osmosis.records.run.status import RunStatus
from osmosis.records.run.study import Study

log = logging.getLogger(__name__)

ArmRuns = Mapping[str, Sequence[tables.Run]]
"""Runs by the name of their arm's run, the oldest first, without deleted ones."""
DATASET = "dataset_sha256"


@dataclass(frozen=True)
class DatabaseSource:
    """The runs of an arm as one: attempts at a row are exchangeable, whichever look they were made for."""

    session: Session
    runs: ArmRuns
    cache: dict[str, list[Rollout]] = field(default_factory=dict)

    def rollouts(self, run: str) -> list[Rollout]:
        if run not in self.cache:
            ids = [stored.id for stored in self.runs[run]]
            bodies = (body for id_ in ids for body in rollouts.list_outcomes(self.session, id_, limit=10**9, offset=0))
            self.cache[run] = [Rollout.model_validate_json(body) for body in bodies]
        return self.cache[run]

    def score_facts(self, run: str) -> studies.ScoreFacts:
        reports = [report for stored in self.runs[run] if (report := views.report_of(stored)) is not None]
        primary = next((report.primary.name for report in reports if report.primary is not None), "reward")
        return primary, {score.name: score.bounds for report in reports for score in report.scores if score.bounds}


def find(session: Session, workspace: tables.Workspace, name: str) -> tables.Decision | None:
    return session.scalars(sa.select(tables.Decision).filter_by(workspace_id=workspace.id, name=name)).first()


def list_runs(session: Session, decisions: Sequence[tables.Decision]) -> dict[str, ArmRuns]:
    ids = [run_id for decision in decisions for own in decision.run_ids.values() for run_id in own]
    runs = {run.id: run for run in session.scalars(sa.select(tables.Run).where(tables.Run.id.in_(ids)))}
    return {
        decision.id: {arm: [runs[id_] for id_ in own if id_ in runs] for arm, own in decision.run_ids.items()}
        for decision in decisions
    }


def begin(platform: Platform, workspace: tables.Workspace, actor: audit.Actor, body: NewDecision) -> None:
    """Begin a study, or go on with the stopped one of this name; raise UsageError when it has other questions."""
    with platform.db.write() as session:
        stored = find(session, workspace, body.study.name)
        if stored is not None:
            studies.check_words(Study.model_validate(stored.study), body.study)
            if stored.status == "stopped":
                stored.awaited, stored.creator_id = [], actor.user.id
                _switch(session, actor, stored, "running")
            return
    # Without values that were given for this time: later looks have none.
    requests = {
        arm: submit.RunRequest(submit.parse(dict(config), "eval").config, {}) for arm, config in body.configs.items()
    }
    orders = {arm: submit.check(platform, workspace, actor, request, kind="eval") for arm, request in requests.items()}
    names = {request.config.experiment.dataset for request in requests.values()}
    if set(orders) != set(body.study.arms) or len(names) != 1:
        raise ValidationError("each arm needs a config, and all of them the same dataset", field="configs")
    code = next(iter(orders.values())).code
    with platform.db.read() as session:
        dataset = datasets.find(session, workspace, names.pop())
        history = _list_history(session, workspace, dataset.sha256)
    total = dataset.row_count or 0
    rows, aside = list(range(min(total, body.study.limits.limit or total))), code.quarantine.of([dataset.name]).active
    if aside:
        parts = [(dataset.path or "", 0, "", rows)]
        rows = [row.index for row in datasets.iterate_rows(platform.objects, parts) if row.key not in aside]
    draft = body.study.model_copy(update={"facts": {**body.study.facts, DATASET: dataset.sha256}})
    study = studies.begin_study(draft, rows)
    decision = tables.Decision(workspace_id=workspace.id, creator_id=actor.user.id, name=study.name)
    decision.study, decision.awaited = studies.settle_rows(study, history).to_dict(), []
    decision.configs, decision.run_ids = {}, {name: [] for name in study.runs.values()}
    for arm, name in study.runs.items():
        lifecycle.parse_name(f"{name}--part99")
        config = requests[arm].config
        pinned = config.experiment.model_copy(update={"commit_sha": code.commit_sha, "branch": None})
        # A schedule would begin with each look, and a notice come after it.
        unset = {"experiment": pinned, "schedule": None, "notify": None}
        decision.configs[name] = config.model_copy(update=unset).to_dict()
    with platform.db.write() as session:
        session.add(decision)
        _switch(session, actor, decision, "running")


def _list_history(session: Session, workspace: tables.Workspace, sha256: str | None) -> list[studies.PastRun]:
    query = sa.select(tables.Run).filter_by(workspace_id=workspace.id, kind="eval", dataset_sha256=sha256)
    newest = query.where(tables.Run.completed_at.is_not(None)).order_by(tables.Run.created_at.desc())
    source = DatabaseSource(session, {run.id: [run] for run in session.scalars(newest.limit(studies.HISTORY))})
    thresholds = [run.config.get("evaluation", {}).get("pass_threshold", 1.0) for (run,) in source.runs.values()]
    scores = [scores_by_row(source.rollouts(id_), source.score_facts(id_)[0]) for id_ in source.runs]
    return list(zip(scores, thresholds, strict=True))


def _switch(session: Session, actor: audit.Actor | None, row: tables.Decision, status: str, text: str = "") -> None:
    row.status, row.problem, row.updated_at = status, text, utc_now()
    workspace = session.get_one(tables.Workspace, row.workspace_id)
    audit.note(session, actor, f"decision.{status}", row.name, workspace=workspace, reason=text)


def stop(session: Session, actor: audit.Actor, decision: tables.Decision | None) -> None:
    if decision is None or decision.status != "running":
        raise Conflict("no decision of this name is going on", hint="the page /decisions lists them")
    for run in chain(*list_runs(session, [decision])[decision.id].values()):
        lifecycle.request_stop(session, run)
    _switch(session, actor, decision, "stopped", f"stopped by {actor.user.name}")


def advance_all(platform: Platform) -> None:
    with platform.db.read() as session:
        going = list(session.scalars(sa.select(tables.Decision).filter_by(status="running")))
    for decision in going:
        try:
            _advance(platform, decision)
        except OsmosisError as problem:
            _fail(platform, decision, f"{problem.message}\n{problem.hint or ''}".strip())
        except Exception as problem:  # the border of one study: the others come next
            log.exception("decision %s failed", decision.id)
            _fail(platform, decision, f"internal error: {type(problem).__name__}")


def _fail(platform: Platform, decision: tables.Decision, reason: str) -> None:
    with platform.db.write() as session:
        row = session.get(tables.Decision, decision.id)
        if row is not None and row.status == "running":
            _switch(session, None, row, "stopped", reason)


def _advance(platform: Platform, decision: tables.Decision) -> None:
    with platform.db.read() as session:
        workspace = session.get_one(tables.Workspace, decision.workspace_id)
        runs = list_runs(session, [decision])[decision.id]
        if not all(RunStatus(run.status).over for run in chain(*runs.values())):
            return
        if not may(workspaces.role_of(session, decision.creator_id or "", workspace.id) or "", "run"):
            raise Conflict("whoever began it may not submit runs here any more")
        study, source = Study.model_validate(decision.study), DatabaseSource(session, runs)
        name = next(iter(decision.configs.values()))["experiment"]["dataset"]
        if datasets.find(session, workspace, name).sha256 != study.facts[DATASET]:
            raise Conflict(f"dataset {name} has other rows than at the beginning", hint="begin another one: --name")
        growths = list(studies.list_growths(study, source))
        for growth in growths:
            run = next(reversed(runs[growth.run]), None)
            if run is not None and run.id in decision.awaited:
                reason = (run.failure or {}).get("message") or f"it is {run.status}"
                raise Conflict(f"run {run.name} lacks {sum(growth.missing.values()):,} rollouts of this look: {reason}")
        while study.due is not None and not growths:
            study = studies.take_look(study, source, lambda line: log.info("%s: %s", decision.name, line))
            growths = list(studies.list_growths(study, source))
    # With a budget one after the other, so that all of them together never spend more.
    growths = growths if study.limits.max_cost is None else growths[:1]
    requests = {growth.run: _build_request(decision, growth) for growth in growths}
    orders = {arm: submit.check(platform, workspace, None, request, kind="eval") for arm, request in requests.items()}
    with platform.db.write() as session:
        row = session.get(tables.Decision, decision.id, with_for_update=True)
        if row is None or (row.status, row.updated_at) != (decision.status, decision.updated_at):
            return  # it was stopped meanwhile, or another process was faster
        inserted = {arm: submit.insert(session, platform.vault, order).id for arm, order in orders.items()}
        row.run_ids = {arm: [*own, *([inserted[arm]] if arm in inserted else [])] for arm, own in row.run_ids.items()}
        row.study, row.awaited, row.updated_at = study.to_dict(), list(inserted.values()), utc_now()
        row.status = "decided" if study.due is None else "running"


def _build_request(decision: tables.Decision, growth: studies.Growth) -> submit.RunRequest:
    config = EvalConfig.model_validate(decision.configs[growth.run])
    # Without money left it ends at once, and says so.
    limits = {"max_cost": max(1e-9, growth.left - growth.cost)} if growth.left is not None else {}
    evaluation = config.evaluation.model_copy(update={"n": max(growth.missing.values()), **limits})
    name, by = f"{growth.run}--part{len(decision.run_ids[growth.run]) + 1}", f"decision {decision.name}"
    config, rows = config.model_copy(update={"evaluation": evaluation}), sorted(growth.missing)
    return submit.RunRequest(config, {}, name, rows=rows, submitter=by, owner_id=decision.creator_id)
