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


def merge(session: Session, run_id: str, said: Iterable[Annotation], sender: tables.User | None) -> int:
    """Adds what is not there yet; how many that were. They keep who said it, and when; what is said in the name of
    another member of the workspace says who sent it, so that nobody is made to have said something."""
    known = {one.identity for one in everything(session, run_id)}
    others = _others(session, run_id, sender)
    added = 0
    for one in said:
        if one.identity in known:
            continue
        if one.author.strip().casefold() in others:
            one = one.model_copy(update={"author": f"{one.author} (sent by {sender.name if sender else 'somebody'})"})
        if one.identity not in known:
            known.add(one.identity)
            add(session, run_id, one, sender.id if sender else None)
            added += 1
    return added


def _others(session: Session, run_id: str, sender: tables.User | None) -> set[str]:
    """What the members of the run's workspace are called, but for one of them."""
    people = (
        sa.select(tables.User)
        .join(tables.Member, tables.Member.user_id == tables.User.id)
        .join(tables.Run, tables.Run.workspace_id == tables.Member.workspace_id)
        .where(tables.Run.id == run_id)
    )
    others = [one for one in session.scalars(people) if sender is None or one.id != sender.id]
    own = {sender.name.casefold(), sender.handle.casefold()} if sender else set()
    return {called.casefold() for one in others for called in (one.name, one.handle)} - own


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
