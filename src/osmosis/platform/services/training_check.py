"""Before a training run is submitted: what its config comes to, and what the newest evaluation says about it.

Reads, decides nothing: the rules are `metrics.will_it_train`, and whether to go on is the person's decision. Refused
here is only what no run could do: a dataset that does not fill one step.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.metrics.will_it_train import Gate, Tried, will_it_imitate, will_it_train
from osmosis.platform import tables
from osmosis.records.config import TrainingConfig
from osmosis.records.contract.training_bodies import GateFinding, TrainingCheck
from osmosis.records.training_plan import TrainingPlan, plan_training

from . import datasets, imitation, run_lifecycle

MAX_ROLLOUTS = 1000
PAGE = 100


def check(
    session: Session, workspace: tables.Workspace, config: TrainingConfig, eval_run: str | None = None
) -> TrainingCheck:
    """By the named evaluation, else by the newest of the same rollout and dataset that has rollouts."""
    dataset = datasets.find(session, workspace, config.experiment.dataset)
    if config.advanced.method == "sft":
        return _of_imitation(session, workspace, config, range(dataset.row_count or 0))
    plan = plan_training(config, range(dataset.row_count or 0))
    if eval_run is not None:
        run: tables.Run | None = run_lifecycle.find(session, workspace, "eval", eval_run)
    else:
        run = _newest(session, workspace, config)
    tried = _tried(session, run.id) if run else []
    stored = run.config.get("evaluation", tables.StoredEvaluation()) if run else tables.StoredEvaluation()
    gate = will_it_train(config, plan, tried, at_once=stored.get("batch_size"))
    return _body(plan, gate, run)


def _of_imitation(
    session: Session, workspace: tables.Workspace, config: TrainingConfig, rows: Sequence[int]
) -> TrainingCheck:
    source = imitation.source(session, workspace, config)
    examples = imitation.count(session, source, config)
    plan = plan_training(config, rows, examples=examples)
    found = _body(plan, will_it_imitate(config, plan, examples), source)
    found.examples = examples
    return found


def too_small(config: TrainingConfig, rows: int) -> str | None:
    """Why a dataset of so many rows cannot be trained on."""
    gate = will_it_train(config, plan_training(config, range(rows)), [], at_once=None)
    return next((finding.what for finding in gate.findings if finding.code == "too-few-rows"), None)


def _newest(session: Session, workspace: tables.Workspace, config: TrainingConfig) -> tables.Run | None:
    same = (
        tables.Run.workspace_id == workspace.id,
        tables.Run.kind == "eval",
        tables.Run.rollout == config.experiment.rollout,
        tables.Run.dataset == config.experiment.dataset,
        sa.exists().where(tables.Rollout.run_id == tables.Run.id),
    )
    return session.scalars(sa.select(tables.Run).where(*same).order_by(tables.Run.created_at.desc()).limit(1)).first()


def _tried(session: Session, run_id: str) -> list[Tried]:
    """The first rollouts of a run, a page at a time: the records are large, and little of them is needed."""
    columns = (tables.Rollout.row_key, tables.Rollout.reward, tables.Rollout.duration_ms, tables.Rollout.body)
    query = sa.select(*columns).where(tables.Rollout.run_id == run_id).order_by(tables.Rollout.id)
    found = []
    for start in range(0, MAX_ROLLOUTS, PAGE):
        page = session.execute(query.limit(PAGE).offset(start)).all()
        for key, reward, duration, body in page:
            usage = json.loads(body).get("usage") or {}
            found.append(Tried(key, reward, duration / 1000, int(usage.get("completion_tokens") or 0)))
        if len(page) < PAGE:
            break
    return found


def _body(plan: TrainingPlan, gate: Gate, run: tables.Run | None) -> TrainingCheck:
    return TrainingCheck(
        eval_run=run.name if run else None,
        eval_model=run.model_path if run else None,
        steps=plan.steps,
        training_rows=len(plan.rows),
        validation_rows=len(plan.validation_rows),
        rollouts_per_step=plan.at_once,
        total_rollouts=plan.rollouts,
        tried_rollouts=gate.rollouts,
        tried_groups=gate.groups,
        no_signal=gate.no_signal,
        mean_reward=gate.mean_reward,
        failed=gate.failed,
        truncated=gate.truncated,
        p95_s=gate.p95_s,
        least_s=gate.least_s,
        findings=[GateFinding(code=f.code, severity=f.severity, what=f.what, fix=f.fix) for f in gate.findings],
    )
