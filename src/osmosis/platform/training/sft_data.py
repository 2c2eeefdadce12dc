"""The examples of supervised training (`method = "sft"`): rollouts of an earlier run with a sufficient score. The
stored config names that run, so a job can ask for no other."""

from collections.abc import Iterator

import orjson
import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.errors import NotFound, ValidationError
from osmosis.platform import tables
from osmosis.platform.runs import lifecycle
from osmosis.records.api.jobs import StoredExample
from osmosis.records.config.run_config import Evaluation, TrainingConfig
from osmosis.records.run.rollout import RolloutStatus
from osmosis.records.run.status import RunStatus

KINDS = ("eval", "training")
PAGE_BYTES = 8 * 1024 * 1024


def get_source(session: Session, workspace: tables.Workspace, config: TrainingConfig) -> tables.Run:
    """Return the source: `eval/NAME`, `training/NAME`, or a name alone, an evaluation first. Raise ValidationError with
    an issue if there is none, or it is not over."""
    named = config.advanced.from_run or ""
    kind, _, name = named.rpartition("/")
    for candidate in (kind,) if kind else KINDS:
        try:
            run = lifecycle.find(session, workspace, candidate, name)
            break
        except NotFound:
            continue
    else:
        raise _refused(f"there is no run named {named!r}", "osmosis eval list, osmosis train list")
    if not RunStatus(run.status).over:
        command = "eval" if run.kind == "eval" else "train"
        raise _refused(f"run {named!r} is {run.status}", f"wait for it: osmosis {command} info {name}")
    return run


def full_name(run: tables.Run) -> str:
    return f"{run.kind}/{run.name}"


def least_score(run: tables.Run, config: TrainingConfig) -> float:
    """Return the lowest score of an example: `min_score`, else what passes in that run."""
    if config.advanced.min_score is not None:
        return config.advanced.min_score
    threshold = run.config.get("evaluation", {}).get("pass_threshold")
    return Evaluation().pass_threshold if threshold is None else threshold


def count_examples(session: Session, run: tables.Run, config: TrainingConfig) -> int:
    return session.scalar(sa.select(sa.func.count()).select_from(_chosen(run, config).subquery())) or 0


def explain_too_few(session: Session, workspace: tables.Workspace, config: TrainingConfig) -> str | None:
    run, batch = get_source(session, workspace, config), config.training.rollout_batch_size
    examples = count_examples(session, run, config)
    if examples >= batch:
        return None
    score = least_score(run, config)
    return f"run {run.name!r} has {examples} rollouts with a score of at least {score:g}, and one step takes {batch}"


def list_row_keys(session: Session, workspace: tables.Workspace, config: TrainingConfig) -> set[str]:
    try:
        run = get_source(session, workspace, config)
    except ValidationError:
        return set()
    return set(session.scalars(_chosen(run, config).with_only_columns(tables.Rollout.row_key).distinct()))


def list_examples(
    session: Session, run: tables.Run, config: TrainingConfig, *, after: int, limit: int
) -> Iterator[StoredExample]:
    query = _chosen(run, config).where(tables.Rollout.id > after).order_by(tables.Rollout.id).limit(limit)
    sent = 0
    for position, body in session.execute(query):
        record = orjson.loads(body)
        yield StoredExample(place=position, messages=record.get("messages") or [], tools=record.get("tools"))
        sent += len(body)
        if sent >= PAGE_BYTES:
            return


def _chosen(run: tables.Run, config: TrainingConfig) -> sa.Select[int, str]:
    return sa.select(tables.Rollout.id, tables.Rollout.body).where(
        tables.Rollout.run_id == run.id,
        tables.Rollout.status == RolloutStatus.SUCCESS.value,
        tables.Rollout.reward >= least_score(run, config),
    )


def _refused(message: str, fix: str) -> ValidationError:
    issue = {"key": "advanced.from_run", "message": message, "hint": fix}
    return ValidationError(message, hint=fix, issues=[issue])
