"""What people said about the rollouts of a run. Only grows: of what a person says about one, the newest counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.platform import tables
from osmosis.records.annotation import Annotation, newest


def of_run(session: Session, run_id: str) -> list[Annotation]:
    """What counts, by rollout."""
    query = sa.select(tables.Annotation.body).where(tables.Annotation.run_id == run_id).order_by(tables.Annotation.id)
    return newest(Annotation.model_validate_json(body) for body in session.scalars(query))


def everything(session: Session, run_id: str) -> Iterator[Annotation]:
    """All that was said, in order: what a file of annotations holds."""
    query = sa.select(tables.Annotation.body).where(tables.Annotation.run_id == run_id)
    for body in session.scalars(query.order_by(tables.Annotation.created_at, tables.Annotation.id)):
        yield Annotation.model_validate_json(body)


def merge(session: Session, run_id: str, said: Iterable[Annotation]) -> int:
    """Adds what is not there yet; how many that were. They keep who said it, and when."""
    known = {one.identity for one in everything(session, run_id)}
    added = 0
    for one in said:
        if one.identity not in known:
            known.add(one.identity)
            add(session, run_id, one, None)
            added += 1
    return added


def version(session: Session, run_id: str) -> int:
    """Another number after each that is added."""
    return session.scalar(sa.select(sa.func.max(tables.Annotation.id)).where(tables.Annotation.run_id == run_id)) or 0


def add(session: Session, run_id: str, said: Annotation, author_id: str | None) -> None:
    """Keeps it as it was said."""
    step, row_index, attempt = said.place
    session.add(
        tables.Annotation(
            run_id=run_id,
            author_id=author_id,
            step=step,
            row_index=row_index,
            attempt=attempt,
            body=said.model_dump_json(exclude_none=True),
            created_at=said.created_at,
        )
    )
