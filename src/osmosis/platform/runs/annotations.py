"""Annotations of a run's rollouts, of which a person's newest counts; its tags, note and pin."""

from collections.abc import Iterable, Iterator

import pydantic
import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.errors import ValidationError
from osmosis.platform import tables
from osmosis.records.run.annotations import MOST_TAGS, Annotation, MarkChange, Marks, keep_newest


def list_annotations(session: Session, run_id: str) -> list[Annotation]:
    query = sa.select(tables.Annotation.body).where(tables.Annotation.run_id == run_id).order_by(tables.Annotation.id)
    return keep_newest(Annotation.model_validate_json(body) for body in session.scalars(query))


def iterate_annotations(session: Session, run_id: str) -> Iterator[Annotation]:
    query = sa.select(tables.Annotation.body).where(tables.Annotation.run_id == run_id)
    for body in session.scalars(query.order_by(tables.Annotation.created_at, tables.Annotation.id)):
        yield Annotation.model_validate_json(body)


def merge(session: Session, run_id: str, annotations: Iterable[Annotation], sender: tables.User | None) -> int:
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
            add(session, run_id, annotation, sender.id if sender else None)
            added += 1
    return added


def version(session: Session, run_id: str) -> int:
    return session.scalar(sa.select(sa.func.max(tables.Annotation.id)).where(tables.Annotation.run_id == run_id)) or 0


def add(session: Session, run_id: str, annotation: Annotation, author_id: str | None) -> None:
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
