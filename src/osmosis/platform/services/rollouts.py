"""Rollouts of a run: stored once each, listed, read back.

The unique key (run, step, row key, attempt) decides: what a job sends twice, or two jobs send, counts once. The record
is kept as text and returned as it came.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import InstrumentedAttribute, Session, undefer

from osmosis.errors import NotFound, ValidationError
from osmosis.platform import tables
from osmosis.platform.db import changed_by
from osmosis.records.base import utc_now
from osmosis.records.contract.body import moment
from osmosis.records.contract.run_bodies import RolloutRow
from osmosis.records.keys import DerivedKeys, Key
from osmosis.records.rollout import Rollout, RolloutStatus

from . import run_tally

SAID = ("messages", "calls", "info")
"""What a rollout said: most of its record, and nothing that is counted."""
KEY = ["run_id", "step", "row_key", "attempt"]
ROWS = re.compile(r"^\d+(-\d+)?$")


def store(session: Session, run_id: str, rollouts: Iterable[Rollout]) -> int:
    """Keep what is not there yet; how many that were is the answer."""
    return store_columns(session, run_id, map(columns_of, _keyed(session, run_id, list(rollouts))))


def store_columns(session: Session, run_id: str, columns: Iterable[Mapping[str, object]]) -> int:
    """`store` of rollouts that have their keys, as `columns_of` made them."""
    now = utc_now()
    values = [{**one, "run_id": run_id, "created_at": now} for one in columns]
    if not values:
        return 0
    run_tally.in_turn(session, run_id)
    connection = session.connection()
    if connection.dialect.name == "sqlite":
        insert = sqlite.insert(tables.Rollout).on_conflict_do_nothing(index_elements=KEY)
        return connection.execute(insert, values).rowcount
    # What many rows came to is not counted by PostgreSQL's driver: those that were stored come back.
    returning = (
        postgresql.insert(tables.Rollout).on_conflict_do_nothing(index_elements=KEY).returning(tables.Rollout.id)
    )
    return len(connection.execute(returning, values).all())


def _keyed(session: Session, run_id: str, given: list[Rollout]) -> list[Rollout]:
    """With row keys, also for a job of version 1.0, which sends none."""
    bare = [rollout for rollout in given if rollout.row_key is None]
    if bare:
        rows = sa.select(tables.Rollout.row_index, tables.Rollout.row_key).where(tables.Rollout.run_id == run_id)
        keys = DerivedKeys({row_index: row_key for row_index, row_key in session.execute(rows.distinct())})
        for rollout in bare:
            rollout.row_key = keys.of(None, rollout.row_index, rollout.hashes.get("row"))
    return given


def columns_of(rollout: Rollout) -> dict[str, object]:
    """What is stored of a rollout, but for its run: plain values of JSON."""
    body = rollout.to_line().decode().rstrip("\n")
    return {
        "rollout_id": rollout.rollout_id,
        "row_index": rollout.row_index,
        "step": rollout.step,
        "row_key": rollout.row_key,
        "attempt": rollout.attempt,
        "status": rollout.status.value,
        "reward": reward_of(rollout),
        "tokens": rollout.usage.total_tokens,
        "duration_ms": rollout.duration_ms,
        "failure_category": _category(rollout),
        "body": body,
    }


def reward_of(rollout: Rollout) -> float | None:
    """The first score: the one runs are listed and passed by."""
    first = next(iter(rollout.scores.values()), None)
    return first.value if first and rollout.status is RolloutStatus.SUCCESS else None


def _category(rollout: Rollout) -> str | None:
    if rollout.failure is not None:
        return rollout.failure.category.value
    failed = next((score.failure for score in rollout.scores.values() if score.failure), None)
    return failed.category.value if failed else None


def keys(session: Session, run_id: str, *, rows: tuple[int, int] | None = None) -> list[Key]:
    """Of everything stored, or of these rows: the first and the last."""
    query = sa.select(tables.Rollout.step, tables.Rollout.row_key, tables.Rollout.attempt)
    found = session.execute(query.where(_of(run_id, rows)).order_by(*_order()))
    return [(step, row_key, attempt) for step, row_key, attempt in found]


def _of(run_id: str, rows: tuple[int, int] | None) -> sa.ColumnElement[bool]:
    """Of a run, and of these rows: the first and the last."""
    of_run = tables.Rollout.run_id == run_id
    return of_run if rows is None else sa.and_(of_run, tables.Rollout.row_index.between(*rows))


def _order() -> tuple[InstrumentedAttribute[int], InstrumentedAttribute[int]]:
    return tables.Rollout.row_index, tables.Rollout.attempt


def listed(run_id: str, status: str | None = None) -> sa.Select[tables.Rollout]:
    """In order of row and attempt; `status` keeps one of success, failed, skipped."""
    query = sa.select(tables.Rollout).where(tables.Rollout.run_id == run_id)
    if status is not None:
        if status not in {known.value for known in RolloutStatus}:
            raise ValidationError("status must be success, failed or skipped", field="status")
        query = query.where(tables.Rollout.status == status)
    return query.order_by(*_order())


def with_bodies(
    session: Session, run_id: str, *, limit: int, offset: int = 0, rows: tuple[int, int] | None = None
) -> list[str]:
    """The records themselves, as JSON text."""
    query = sa.select(tables.Rollout.body).where(_of(run_id, rows))
    return list(session.scalars(query.order_by(*_order()).limit(limit).offset(offset)))


def outcomes(session: Session, run_id: str, *, limit: int, offset: int) -> list[bytes]:
    """The records without conversations and calls, which are most of them, as JSON: what comparing needs."""
    found = []
    for text in with_bodies(session, run_id, limit=limit, offset=offset):
        record = orjson.loads(text)
        for name in SAID:
            record.pop(name, None)
        found.append(orjson.dumps(record))
    return found


def arrived(session: Session, run_id: str, *, limit: int, offset: int) -> list[bytes]:
    """Whole records in the order in which they were stored, so that a reader of a run in progress misses none."""
    ids = sa.select(tables.Rollout.id).where(tables.Rollout.run_id == run_id).order_by(tables.Rollout.id)
    chosen = ids.limit(limit).offset(offset).subquery()  # ids are skipped over, not bodies
    query = sa.select(tables.Rollout.body).join(chosen, chosen.c.id == tables.Rollout.id)
    return [text.encode() for text in session.scalars(query.order_by(tables.Rollout.id))]


def get(session: Session, run_id: str, row_index: int, attempt: int) -> Rollout:
    """One whole rollout. NotFound when it is not (yet) there."""
    return Rollout.model_validate_json(text(session, run_id, row_index, attempt))


def text(session: Session, run_id: str, row_index: int, attempt: int, step: int = 0) -> str:
    """One rollout as the JSON text that was stored."""
    return row(session, run_id, row_index, attempt, step=step, whole=True).body


def row(
    session: Session, run_id: str, row_index: int, attempt: int, *, step: int = 0, whole: bool = False
) -> tables.Rollout:
    """One rollout's columns, `whole` with its body. NotFound when it is not (yet) there."""
    query = sa.select(tables.Rollout).where(
        tables.Rollout.run_id == run_id,
        tables.Rollout.row_index == row_index,
        tables.Rollout.attempt == attempt,
        tables.Rollout.step == step,
    )
    if whole:
        query = query.options(undefer(tables.Rollout.body))
    found = session.scalars(query).first()
    if found is None:
        raise NotFound(f"no rollout of row {row_index}, attempt {attempt} in this run")
    return found


def drop_unsuccessful(session: Session, run_id: str) -> int:
    """Remove what failed or was skipped or has no score, so that it is done again; how many that were."""
    again = sa.or_(tables.Rollout.status != RolloutStatus.SUCCESS.value, tables.Rollout.reward.is_(None))
    return changed_by(session, sa.delete(tables.Rollout).where(tables.Rollout.run_id == run_id, again))


def body(row: tables.Rollout) -> RolloutRow:
    """A rollout as lists show it."""
    return RolloutRow(
        rollout_id=row.rollout_id,
        row_index=row.row_index,
        attempt=row.attempt,
        step=row.step,
        status=row.status,
        reward=row.reward,
        tokens=row.tokens,
        duration_ms=row.duration_ms,
        failure_category=row.failure_category,
        created_at=moment(row.created_at),
    )


def parse_rows(spec: str | None) -> Iterator[tuple[int, int]]:
    """`3,7,10-20` as inclusive ranges. ValidationError for anything else."""
    for part in (spec or "").split(","):
        part = part.strip()
        if not part:
            continue
        if not ROWS.match(part):
            raise ValidationError(f"rows: {part!r} is neither a number nor a range", hint="for example 3,7,10-20")
        low, _, high = part.partition("-")
        yield int(low), int(high or low)
