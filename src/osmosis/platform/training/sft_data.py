"""Examples for `sft` and `dpo` from the run that the stored config names, so that a job can ask for no other."""

from collections import defaultdict
from collections.abc import Iterator

import orjson
import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.errors import NotFound, ValidationError
from osmosis.platform import tables
from osmosis.platform.runs import lifecycle
from osmosis.records.api.workers import StoredExample
from osmosis.records.config.run_config import Evaluation, TrainingConfig
from osmosis.records.run.rollout import RolloutStatus
from osmosis.records.run.status import RunStatus

KINDS = ("eval", "training")
PAGE_BYTES = 8 * 1024 * 1024


def get_source(session: Session, workspace: tables.Workspace, config: TrainingConfig) -> tables.Run:
    """Return `eval/NAME`, `training/NAME`, or a name alone, an evaluation first. Raise ValidationError."""
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
    if config.advanced.min_score is not None:
        return config.advanced.min_score
    threshold = run.config.get("evaluation", {}).get("pass_threshold")
    return Evaluation().pass_threshold if threshold is None else threshold


def count_examples(session: Session, run: tables.Run, config: TrainingConfig) -> int:
    if config.advanced.method == "dpo":
        return len(_pair(session, run, config))
    return session.scalar(sa.select(sa.func.count()).select_from(_chosen(run, config).subquery())) or 0


def explain_too_few(session: Session, workspace: tables.Workspace, config: TrainingConfig) -> str | None:
    run, batch = get_source(session, workspace, config), config.training.rollout_batch_size
    examples = count_examples(session, run, config)
    if examples >= batch:
        return None
    unit = "rollouts" if config.advanced.method == "sft" else "pairs of a worse rollout and one"
    score = least_score(run, config)
    return f"run {run.name!r} has {examples} {unit} with a score of at least {score:g}, and one step takes {batch}"


def list_row_keys(session: Session, workspace: tables.Workspace, config: TrainingConfig) -> set[str]:
    try:
        run = get_source(session, workspace, config)
    except ValidationError:
        return set()
    return set(session.scalars(_chosen(run, config).with_only_columns(tables.Rollout.row_key).distinct()))


def list_examples(
    session: Session, run: tables.Run, config: TrainingConfig, *, after: int, limit: int
) -> Iterator[StoredExample]:
    if config.advanced.method == "dpo":
        pairs = enumerate(_pair(session, run, config)[after : after + limit], after + 1)
        rows: Iterator[tuple[int, str, str]] = (
            (number, session.get_one(tables.Rollout, better).body, session.get_one(tables.Rollout, worse).body)
            for number, (better, worse) in pairs
        )
    else:
        query = _chosen(run, config).where(tables.Rollout.id > after).order_by(tables.Rollout.id).limit(limit)
        rows = ((position, body, "{}") for position, body in session.execute(query))
    sent = 0
    for position, body, worse_body in rows:
        record, rejected = orjson.loads(body), orjson.loads(worse_body).get("messages")
        messages, offered = record.get("messages") or [], record.get("tools")
        yield StoredExample(place=position, messages=messages, tools=offered, rejected=rejected)
        sent += len(body) + len(worse_body)
        if sent >= PAGE_BYTES:
            return


def _chosen(run: tables.Run, config: TrainingConfig) -> sa.Select[int, str]:
    return sa.select(tables.Rollout.id, tables.Rollout.body).where(
        tables.Rollout.run_id == run.id,
        tables.Rollout.status == RolloutStatus.SUCCESS.value,
        tables.Rollout.reward >= least_score(run, config),
    )


def _pair(session: Session, run: tables.Run, config: TrainingConfig) -> list[tuple[int, int]]:
    """Return ids of preferred and of worse rollouts: by row, the best and the worst first."""
    least = least_score(run, config)
    query = sa.select(tables.Rollout.id, tables.Rollout.row_key, tables.Rollout.reward).where(
        tables.Rollout.run_id == run.id,
        tables.Rollout.status == RolloutStatus.SUCCESS.value,
        tables.Rollout.reward.is_not(None),
    )
    rows: dict[str, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for position, row, reward in session.execute(query.order_by(tables.Rollout.reward.desc(), tables.Rollout.id)):
        rows[row][float(reward or 0) < least].append(position)
    pairs = []
    for better, worse in rows.values():
        count = min(config.advanced.pairs_per_row, max(len(better), len(worse))) if better and worse else 0
        pairs += [(better[at % len(better)], worse[-1 - at % len(worse)]) for at in range(count)]
    return pairs


def _refused(message: str, fix: str) -> ValidationError:
    issue = {"key": "advanced.from_run", "message": message, "hint": fix}
    return ValidationError(message, hint=fix, issues=[issue])
