"""Rollouts of a run; the unique key (run, step, row key, attempt) makes each count once. Annotations of them, of which
a person's newest counts; the run's tags, note and pin."""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import orjson
import pydantic
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import InstrumentedAttribute, Session, undefer

from osmosis.base.stats import Spread, spread
from osmosis.errors import NotFound, ValidationError
from osmosis.platform import tables
from osmosis.platform.db import SHARED, Database, changed_by, take_turn
from osmosis.records.base import utc_now
from osmosis.records.run.annotations import MOST_TAGS, Annotation, MarkChange, Marks, keep_newest
from osmosis.records.run.rollout import Rollout, RolloutStatus
from osmosis.records.run.rows import DerivedKeys, Key

PAGE = 300
CONVERSATION_FIELDS = ("messages", "calls", "info")
KEY = ["run_id", "step", "row_key", "attempt"]
ROWS = re.compile(r"^\d+(-\d+)?\Z")


def store(session: Session, run_id: str, rollouts: Iterable[Rollout]) -> int:
    records = list(rollouts)
    bare = [rollout for rollout in records if rollout.row_key is None]
    if bare:
        rows = sa.select(tables.Rollout.row_index, tables.Rollout.row_key).where(tables.Rollout.run_id == run_id)
        keys = DerivedKeys({row_index: row_key for row_index, row_key in session.execute(rows.distinct())})
        for rollout in bare:
            rollout.row_key = keys.of(None, rollout.row_index, rollout.hashes.get("row"))
    return store_columns(session, run_id, map(columns_of, records))


def store_columns(session: Session, run_id: str, columns: Iterable[Mapping[str, object]]) -> int:
    now = utc_now()
    values = [{**row, "run_id": run_id, "created_at": now} for row in columns]
    if not values:
        return 0
    # So that ids grow in commit order: a later commit with a smaller id would never be counted.
    take_turn(session, f"rollouts of {run_id}")
    connection = session.connection()
    if connection.dialect.name == "sqlite":
        insert = sqlite.insert(tables.Rollout).on_conflict_do_nothing(index_elements=KEY)
        return connection.execute(insert, values).rowcount
    # What many rows came to is not counted by PostgreSQL's driver: those that were stored come back.
    new_rows = postgresql.insert(tables.Rollout).on_conflict_do_nothing(index_elements=KEY)
    return len(connection.execute(new_rows.returning(tables.Rollout.id), values).all())


def columns_of(rollout: Rollout) -> dict[str, object]:
    body = rollout.to_line().decode().rstrip("\n")
    # By the first score, runs are listed and passed.
    first = next(iter(rollout.scores.values()), None)
    return {
        "rollout_id": rollout.rollout_id,
        "row_index": rollout.row_index,
        "step": rollout.step,
        "row_key": rollout.row_key,
        "attempt": rollout.attempt,
        "status": rollout.status.value,
        "reward": first.value if first and rollout.status is RolloutStatus.SUCCESS else None,
        "tokens": rollout.usage.total_tokens,
        "duration_ms": rollout.duration_ms,
        "failure_category": failure.category.value if (failure := rollout.first_failure) else None,
        "body": body,
    }


def list_keys(session: Session, run_id: str, *, rows: tuple[int, int] | None = None) -> list[Key]:
    query = sa.select(tables.Rollout.step, tables.Rollout.row_key, tables.Rollout.attempt)
    keys = session.execute(query.where(_of(run_id, rows)).order_by(*_order()))
    return [(step, row_key, attempt) for step, row_key, attempt in keys]


def _of(run_id: str, rows: tuple[int, int] | None) -> sa.ColumnElement[bool]:
    of_run = tables.Rollout.run_id == run_id
    return of_run if rows is None else sa.and_(of_run, tables.Rollout.row_index.between(*rows))


def _counted(run_id: str) -> sa.ColumnElement[bool]:
    """Match the rollouts that an evaluation counts: other steps are those of the candidates of a search."""
    return sa.and_(tables.Rollout.run_id == run_id, tables.Rollout.step == 0)


def _order() -> tuple[InstrumentedAttribute[int], ...]:
    return tables.Rollout.row_index, tables.Rollout.attempt, tables.Rollout.step


def select_rollouts(run_id: str, status: str | None = None) -> sa.Select[tables.Rollout]:
    query = sa.select(tables.Rollout).where(_counted(run_id))
    if status is not None:
        if status not in {member.value for member in RolloutStatus}:
            raise ValidationError("status must be success, failed or skipped", field="status")
        query = query.where(tables.Rollout.status == status)
    return query.order_by(*_order())


def list_bodies(
    session: Session, run_id: str, *, limit: int, offset: int = 0, rows: tuple[int, int] | None = None
) -> list[str]:
    query = sa.select(tables.Rollout.body).where(_of(run_id, rows))
    return list(session.scalars(query.order_by(*_order()).limit(limit).offset(offset)))


def iterate_bodies(db: Database, run_id: str, last_id: int = 0) -> Iterator[tuple[int, str]]:
    """Iterate over the ids and records after `last_id`; no session is open while the caller works on one."""
    query = sa.select(tables.Rollout.id, tables.Rollout.body).where(tables.Rollout.run_id == run_id)
    while True:
        with db.read() as session:
            page = session.execute(
                query.where(tables.Rollout.id > last_id).order_by(tables.Rollout.id).limit(PAGE)
            ).all()
        for last_id, body in page:
            yield last_id, body
        if len(page) < PAGE:
            return


def list_outcomes(session: Session, run_id: str, *, limit: int, offset: int) -> list[bytes]:
    lines = []
    query = sa.select(tables.Rollout.body).where(_counted(run_id)).order_by(*_order())
    for text in session.scalars(query.limit(limit).offset(offset)):
        record = orjson.loads(text)
        for name in CONVERSATION_FIELDS:
            record.pop(name, None)
        lines.append(orjson.dumps(record))
    return lines


def list_arrived(session: Session, run_id: str, *, limit: int, offset: int) -> list[bytes]:
    """List whole records in the order of their arrival, so that a reader of a running run misses none."""
    ids = sa.select(tables.Rollout.id).where(_counted(run_id)).order_by(tables.Rollout.id)
    chosen = ids.limit(limit).offset(offset).subquery()  # ids are skipped over, not bodies
    query = sa.select(tables.Rollout.body).join(chosen, chosen.c.id == tables.Rollout.id)
    return [text.encode() for text in session.scalars(query.order_by(tables.Rollout.id))]


def get_rollout(session: Session, run_id: str, row_index: int, attempt: int) -> Rollout:
    return Rollout.model_validate_json(get_text(session, run_id, row_index, attempt))


def get_text(session: Session, run_id: str, row_index: int, attempt: int, step: int = 0) -> str:
    return get_row(session, run_id, row_index, attempt, step=step, whole=True).body


def get_row(
    session: Session, run_id: str, row_index: int, attempt: int, *, step: int = 0, whole: bool = False
) -> tables.Rollout:
    query = sa.select(tables.Rollout).filter_by(run_id=run_id, row_index=row_index, attempt=attempt, step=step)
    stored = session.scalars(query.options(undefer(tables.Rollout.body)) if whole else query).first()
    if stored is None:
        raise NotFound(f"no rollout of row {row_index}, attempt {attempt} in this run")
    return stored


def drop_unsuccessful(session: Session, run_id: str) -> int:
    again = sa.or_(tables.Rollout.status != RolloutStatus.SUCCESS.value, tables.Rollout.reward.is_(None))
    return changed_by(session, sa.delete(tables.Rollout).where(tables.Rollout.run_id == run_id, again))


def parse_rows(spec: str | None) -> Iterator[tuple[int, int]]:
    for part in (spec or "").split(","):
        part = part.strip()
        if not part:
            continue
        if not ROWS.match(part):
            raise ValidationError(f"rows: {part!r} is neither a number nor a range", hint="for example 3,7,10-20")
        low, _, high = part.partition("-")
        yield int(low), int(high or low)


MOST_TALLIES = 64


@dataclass(frozen=True)
class RunTally:
    epoch: int = 0
    last_id: int = 0
    statuses: Mapping[str, int] | None = None
    rewards: Sequence[float] = ()

    @cached_property
    def total(self) -> int:
        return sum((self.statuses or {}).values())

    def count(self, status: RolloutStatus) -> int:
        return (self.statuses or {}).get(status.value, 0)

    @cached_property
    def spread(self) -> Spread | None:
        return spread(self.rewards)

    def outcomes(self, threshold: float) -> dict[str, int]:
        """Count each outcome: a rollout without a reward failed, unless it was skipped."""
        below = bisect_left(self.rewards, threshold)
        skipped = self.count(RolloutStatus.SKIPPED)
        return {
            "passed": len(self.rewards) - below,
            "not-passed": below,
            "failed": self.total - skipped - len(self.rewards),
            "skipped": skipped,
        }

    def added(self, rows: Sequence[tuple[int, str, float | None]]) -> "RunTally":
        statuses = Counter(self.statuses or {})
        statuses.update(status for _, status, _ in rows)
        rewards = sorted([*self.rewards, *(reward for _, _, reward in rows if reward is not None)])
        return RunTally(self.epoch, max(row[0] for row in rows), statuses, rewards)


def tally_of(session: Session, run_id: str) -> RunTally:
    tallies: dict[str, RunTally] = session.info.get(SHARED, {}).setdefault(RunTally, {})
    newest = sa.select(sa.func.max(tables.RunEvent.id)).where(tables.RunEvent.run_id == run_id)
    epoch = session.scalar(newest) or 0
    tally = tallies.get(run_id, RunTally(epoch))
    if tally.epoch != epoch:
        tally = RunTally(epoch)
    rollouts = sa.select(tables.Rollout.id, tables.Rollout.status, tables.Rollout.reward)
    since = session.execute(rollouts.where(_counted(run_id), tables.Rollout.id > tally.last_id)).all()
    if since:
        tally = tally.added([(id_, status, reward) for id_, status, reward in since])
    tallies.pop(run_id, None)
    tallies[run_id] = tally
    for stale in list(tallies)[:-MOST_TALLIES]:
        tallies.pop(stale, None)
    return tally


def list_annotations(session: Session, run_id: str) -> list[Annotation]:
    query = sa.select(tables.Annotation.body).where(tables.Annotation.run_id == run_id).order_by(tables.Annotation.id)
    return keep_newest(Annotation.model_validate_json(body) for body in session.scalars(query))


def iterate_annotations(session: Session, run_id: str) -> Iterator[Annotation]:
    query = sa.select(tables.Annotation.body).where(tables.Annotation.run_id == run_id)
    for body in session.scalars(query.order_by(tables.Annotation.created_at, tables.Annotation.id)):
        yield Annotation.model_validate_json(body)


def merge_annotations(
    session: Session, run_id: str, annotations: Iterable[Annotation], sender: tables.User | None
) -> int:
    """Add new annotations and return how many; one in the name of another member says who sent it."""
    identities = {annotation.identity for annotation in iterate_annotations(session, run_id)}
    people = sa.select(tables.User).join(tables.Member)
    people = people.join(tables.Run, tables.Run.workspace_id == tables.Member.workspace_id)
    people = people.where(tables.Run.id == run_id)
    members = [person for person in session.scalars(people) if sender is None or person.id != sender.id]
    own = {sender.name.casefold(), sender.handle.casefold()} if sender else set()
    others = {called.casefold() for person in members for called in (person.name, person.handle)} - own
    added = 0
    for annotation in annotations:
        if annotation.identity in identities:
            continue
        if annotation.author.strip().casefold() in others:
            author = f"{annotation.author} (sent by {sender.name if sender else 'somebody'})"
            annotation = annotation.model_copy(update={"author": author})
        if annotation.identity not in identities:
            identities.add(annotation.identity)
            add_annotation(session, run_id, annotation, sender.id if sender else None)
            added += 1
    return added


def annotations_version(session: Session, run_id: str) -> int:
    return session.scalar(sa.select(sa.func.max(tables.Annotation.id)).where(tables.Annotation.run_id == run_id)) or 0


def add_annotation(session: Session, run_id: str, annotation: Annotation, author_id: str | None) -> None:
    step, row_index, attempt = annotation.place
    session.add(
        tables.Annotation(
            run_id=run_id,
            author_id=author_id,
            step=step,
            row_index=row_index,
            attempt=attempt,
            body=annotation.model_dump_json(exclude_none=True),
            created_at=annotation.created_at,
        )
    )


def get_marks(run: tables.Run) -> Marks:
    return Marks(tags=run.tags or [], note=run.note or "", pinned=bool(run.pinned))


def has_tag(tag: str) -> sa.ColumnElement[bool]:
    return sa.cast(tables.Run.tags, sa.Text).contains(f'"{tag}"', autoescape=True)


def write_marks(run: tables.Run, change: MarkChange) -> None:
    try:
        after = change.of(get_marks(run))
    except pydantic.ValidationError as error:
        raise ValidationError(f"a run has at most {MOST_TAGS} tags", field="tags", hint="take some away") from error
    run.tags, run.note, run.pinned = after.tags, after.note, after.pinned
