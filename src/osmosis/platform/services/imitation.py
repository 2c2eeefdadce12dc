"""What a supervised training run (`method = "sft"`) learns from: the rollouts of an earlier run of the same workspace
that scored well enough.

Only the config that the platform stored says which run that is, so a job can ask for no other. Rollouts without a
conversation, failed ones and those without a reward are no examples.
"""

from __future__ import annotations

from collections.abc import Iterator

import orjson
import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.errors import NotFound, ValidationError
from osmosis.platform import tables
from osmosis.records.config import Evaluation, TrainingConfig
from osmosis.records.contract.job_messages import StoredExample
from osmosis.records.rollout import RolloutStatus
from osmosis.records.run_status import RunStatus

from . import run_lifecycle

KINDS = ("eval", "training")
"""Each kind numbers its runs by itself, so there may be one of each with a name."""
PAGE_BYTES = 8 * 1024 * 1024
"""About so much is in one answer; a single rollout may be larger."""


def source(session: Session, workspace: tables.Workspace, config: TrainingConfig) -> tables.Run:
    """The run that is learned from: `eval/NAME`, `training/NAME`, or a name alone, which is an evaluation's before it
    is a training run's. ValidationError with an issue when there is none, or it is not over."""
    named = config.advanced.from_run or ""
    kind, _, name = named.rpartition("/")
    for one in (kind,) if kind else KINDS:
        try:
            found = run_lifecycle.find(session, workspace, one, name)
            break
        except NotFound:
            continue
    else:
        raise _refused(f"there is no run named {named!r}", "osmosis eval list, osmosis train list")
    if not RunStatus(found.status).over:
        command = "eval" if found.kind == "eval" else "train"
        raise _refused(f"run {named!r} is {found.status}", f"wait for it: osmosis {command} info {name}")
    return found


def full_name(run: tables.Run) -> str:
    """What `from_run` says of a run for good, whichever runs of that name come later."""
    return f"{run.kind}/{run.name}"


def least_score(run: tables.Run, config: TrainingConfig) -> float:
    """From which score on a rollout is learned from: `min_score`, else what passes in that run."""
    if config.advanced.min_score is not None:
        return config.advanced.min_score
    threshold = run.config.get("evaluation", {}).get("pass_threshold")
    return Evaluation().pass_threshold if threshold is None else threshold


def count(session: Session, run: tables.Run, config: TrainingConfig) -> int:
    """How many rollouts of the run are examples."""
    return session.scalar(sa.select(sa.func.count()).select_from(_chosen(run, config).subquery())) or 0


def too_few(session: Session, workspace: tables.Workspace, config: TrainingConfig) -> str | None:
    """Why there is too little to learn from; raises as `source`."""
    run, batch = source(session, workspace, config), config.training.rollout_batch_size
    found = count(session, run, config)
    if found >= batch:
        return None
    score = least_score(run, config)
    return f"run {run.name!r} has {found} rollouts with a score of at least {score:g}, and one step takes {batch}"


def page(
    session: Session, run: tables.Run, config: TrainingConfig, *, after: int, limit: int
) -> Iterator[StoredExample]:
    """The examples that follow the place `after`, in the order in which they were stored."""
    query = _chosen(run, config).where(tables.Rollout.id > after).order_by(tables.Rollout.id).limit(limit)
    sent = 0
    for place, body in session.execute(query):
        found = orjson.loads(body)
        yield StoredExample(place=place, messages=found.get("messages") or [], tools=found.get("tools"))
        sent += len(body)
        if sent >= PAGE_BYTES:
            return


def _chosen(run: tables.Run, config: TrainingConfig) -> sa.Select[int, str]:
    return sa.select(tables.Rollout.id, tables.Rollout.body).where(
        tables.Rollout.run_id == run.id,
        tables.Rollout.status == RolloutStatus.SUCCESS.value,
        tables.Rollout.reward >= least_score(run, config),
    )


def _refused(what: str, fix: str) -> ValidationError:
    issue = {"key": "advanced.from_run", "message": what, "hint": fix}
    return ValidationError(what, hint=fix, issues=[issue])
