"""Git Sync: what the platform knows of a repository's commits, and the one answer to "which code will run".

A sync reads the branches, looks into every commit it has not seen, and leaves one event per branch that moved
(Pending, Syncing, Success, Failed). A git failure is an event with its text, never an exception. Git runs with
no session open; user code is never imported.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.base import locks
from osmosis.base.redact import without_credentials
from osmosis.errors import OsmosisError, ValidationError
from osmosis.platform import tables
from osmosis.platform.db import Database, count_of
from osmosis.platform.settings import PlatformSettings
from osmosis.records.base import utc_now
from osmosis.records.quarantine import RowQuarantine
from osmosis.records.run import SyncStatus

from . import mirror
from .discovery import FoundItem, Tree, discover
from .mirror import Head, MirrorPlace

log = logging.getLogger(__name__)

MAX_BRANCHES = 200
"""Branches looked into per sync, the newest commits first; an older one can be pinned by commit."""
_OPEN = (SyncStatus.PENDING.value, SyncStatus.SYNCING.value)


@dataclass(frozen=True, slots=True)
class CodeRef:
    """The code a run will use."""

    commit_sha: str
    """All 40 digits."""
    branch: str | None
    """None when a commit was pinned."""
    quarantine: RowQuarantine = field(default_factory=RowQuarantine)
    """As the commit has it."""


def request(session: Session, repository: tables.Repository) -> tables.SyncEvent:
    """A Pending event; `run` carries it out."""
    event = tables.SyncEvent(
        id=tables.new_id(),
        repository_id=repository.id,
        status=SyncStatus.PENDING.value,
        branch=repository.default_branch,
        commit_sha=repository.last_synced_commit or "",
    )
    session.add(event)
    session.flush()
    return event


def run(db: Database, settings: PlatformSettings, event_id: str) -> None:
    """Carry out a requested sync; returns when its event says Success or Failed. Blocks while git works."""
    with db.write() as session:
        event = session.get(tables.SyncEvent, event_id)
        if event is None or event.status not in _OPEN:
            return
        repository = session.get(tables.Repository, event.repository_id)
        if repository is None:
            return
        place = _limited(repository, settings, since=event.created_at)
    try:
        with mirror.locked(place):
            with db.write() as session:
                _begin(session, place.id, event_id, settings)
            named = mirror.fetch(place, settings)
            _look(db, settings, place, named, event_id=event_id)
    except OsmosisError as error:
        _fail(db, event_id, _said(error))
    except Exception as error:
        # The border of a background job: the event must say how it ended.
        log.exception("sync of repository %s failed", place.id)
        _fail(db, event_id, f"internal error during this sync: {type(error).__name__}")
    _tidy(place, settings)


def _limited(
    repository: tables.Repository, settings: PlatformSettings, *, since: datetime | None = None
) -> MirrorPlace:
    """Where a sync works, that may take as long as syncs may."""
    waited = (utc_now() - since).total_seconds() if since else 0.0
    limit = settings.sync_limit_s
    return MirrorPlace.of(repository, settings).within(max(0.0, limit - waited), limit_s=limit)


def after_push(db: Database, settings: PlatformSettings, repository_id: str) -> None:
    """Sync a hosted repository if a branch moved; without a move nothing is written."""
    with db.read() as session:
        repository = session.get(tables.Repository, repository_id)
        if repository is None:
            return
        place = _limited(repository, settings)
    try:
        with mirror.locked(place):
            _look(db, settings, place, None, event_id=None)
    except OsmosisError as error:
        with db.write() as session:
            repository = session.get(tables.Repository, repository_id)
            event_id = request(session, repository).id if repository is not None else ""
        _fail(db, event_id, _said(error))
    _tidy(place, settings)


def poll(db: Database, settings: PlatformSettings, repository_id: str) -> None:
    """Fetch a repository elsewhere and sync what moved; without a move nothing is written.

    A failure is an event, once: while the next ones fail for the same reason, only the log says so.
    """
    with db.read() as session:
        repository = session.get(tables.Repository, repository_id)
        if repository is None or repository.kind != "external":
            return
        place = _limited(repository, settings)
    try:
        with mirror.locked(place):
            _look(db, settings, place, mirror.fetch(place, settings), event_id=None)
    except OsmosisError as error:
        log.warning("repository %s could not be fetched: %s", place.id, without_credentials(error.message))
        _note_failure(db, place, _said(error))
        return
    _tidy(place, settings)


def _note_failure(db: Database, place: MirrorPlace, text: str) -> None:
    with db.write() as session:
        repository = session.get(tables.Repository, place.id)
        if repository is None:
            return
        query = sa.select(tables.SyncEvent).where(tables.SyncEvent.repository_id == place.id)
        last = session.scalars(query.order_by(tables.SyncEvent.created_at.desc()).limit(1)).first()
        if last is not None and last.status == SyncStatus.FAILED.value and last.error == without_credentials(text):
            return
        event_id = request(session, repository).id
    _fail(db, event_id, text)


def _said(error: OsmosisError) -> str:
    """What went wrong, and what to do about it."""
    return f"{error.message}; {error.hint}" if error.hint else error.message


def due(db: Database) -> list[str]:
    """The ids of all repositories elsewhere."""
    wanted = sa.select(tables.Repository.id).where(
        tables.Repository.kind == "external", tables.Repository.status == "active"
    )
    with db.read() as session:
        return list(session.scalars(wanted))


def _tidy(place: MirrorPlace, settings: PlatformSettings) -> None:
    """Not while another sync is at work, which does the same at its end."""
    try:
        with locks.lock_if_free(mirror.lock_file(place)) as free:
            if free:
                mirror.tidy(replace(place, until=math.inf), settings.environ)
    except OsmosisError as error:
        log.warning("repository %s could not be packed: %s", place.id, error.message)


def _look(
    db: Database, settings: PlatformSettings, place: MirrorPlace, named: str | None, *, event_id: str | None
) -> None:
    """Compare branches with what is known, look into new commits, write it all in one transaction."""
    found = mirror.heads(place, settings.environ)
    default = mirror.settle_default_branch(place, named, found, settings.environ)
    with db.read() as session:
        known = known_branches(session, place.id)
    moved = [head for head in found if known.get(head.branch) != head.commit]
    moved.sort(key=lambda head: head.branch != default)  # stable: the default branch first, then the newest
    moved = moved[:MAX_BRANCHES]
    if not moved and event_id is None:
        return
    if not found:
        raise ValidationError("the repository has no branches yet: push one, then sync again")
    held = {commit: _contents(db, settings, place, commit) for commit in {head.commit for head in moved}}
    mirror.keep(place, held, settings.environ)
    shown = moved or [head for head in found if head.branch == default] or found[:1]
    _store(db, place, default, shown, held, event_id=event_id, tip=_tip(found, default))


def _tip(found: list[Head], branch: str) -> Head | None:
    return next((head for head in found if head.branch == branch), None)


def _contents(db: Database, settings: PlatformSettings, place: MirrorPlace, commit: str) -> list[FoundItem] | None:
    """What a commit holds; None when that is stored already."""
    place.seconds(mirror.COMMAND_TIMEOUT_S)  # reading a commit is none of git's own steps
    with db.read() as session:
        if session.scalar(_of_commit(place.id, commit).limit(1)) is not None:
            return None
    return discover(Tree(place.git(settings.environ), commit))


def _store(
    db: Database,
    place: MirrorPlace,
    default: str,
    shown: list[Head],
    held: dict[str, list[FoundItem] | None],
    *,
    event_id: str | None,
    tip: Head | None,
) -> None:
    with db.write() as session:
        repository = session.get(tables.Repository, place.id)
        if repository is None:
            return
        for head in shown:
            for found in held.pop(head.commit, None) or ():
                session.add(_row(place.id, head, found))
        session.flush()
        for head in shown:
            event = session.get(tables.SyncEvent, event_id) if event_id else None
            event_id = None  # the requested event tells of the first branch, further branches get their own
            event = event or request(session, repository)
            event.branch, event.commit_sha = head.branch, head.commit
            event.author, event.message = head.author, head.message
            event.rollouts_found = _count(session, place.id, head.commit)
            event.status, event.error, event.finished_at = SyncStatus.SUCCESS.value, None, utc_now()
        repository.default_branch = default
        repository.last_synced_at = utc_now()
        repository.last_synced_commit = tip.commit if tip else None


def _row(repository_id: str, head: Head, found: FoundItem) -> tables.SyncedRollout:
    return tables.SyncedRollout(
        repository_id=repository_id,
        branch=head.branch,
        commit_sha=head.commit,
        name=found.name,
        path=found.path,
        kind=found.kind,
        description=found.description,
    )


def _fail(db: Database, event_id: str, text: str) -> None:
    with db.write() as session:
        event = session.get(tables.SyncEvent, event_id)
        if event is not None:
            event.status, event.error = SyncStatus.FAILED.value, without_credentials(text)
            event.finished_at = utc_now()


def recover(db: Database) -> None:
    """At the start of the platform: what a former process left open says so, and nobody waits for it.

    A sync that another process is still working on writes its own end over this one.
    """
    with db.write() as session:
        session.execute(
            sa.update(tables.SyncEvent)
            .where(tables.SyncEvent.status.in_(_OPEN))
            .values(
                status=SyncStatus.FAILED.value,
                error="the platform was stopped during this sync; sync again",
                finished_at=utc_now(),
            )
        )


def _begin(session: Session, repository_id: str, event_id: str, settings: PlatformSettings) -> None:
    """Under the lock, which says that no other sync of this repository works: one that says so was cut off. So was one
    that has waited for longer than any may; others wait for their turn."""
    overdue = utc_now() - timedelta(seconds=settings.sync_limit_s + 60)
    events = tables.SyncEvent
    waited_out = (events.status == SyncStatus.PENDING.value) & (events.created_at < overdue)
    session.execute(
        sa.update(events)
        .where(events.repository_id == repository_id, events.id != event_id)
        .where((events.status == SyncStatus.SYNCING.value) | waited_out)
        .values(status=SyncStatus.FAILED.value, error="the platform stopped during this sync", finished_at=utc_now())
    )
    session.execute(sa.update(events).where(events.id == event_id).values(status=SyncStatus.SYNCING.value))


def known_branches(session: Session, repository_id: str) -> dict[str, str]:
    """Branch -> commit of its latest successful sync."""
    rank = sa.func.row_number().over(partition_by=tables.SyncEvent.branch, order_by=tables.SyncEvent.finished_at.desc())
    latest = (
        sa.select(tables.SyncEvent.branch, tables.SyncEvent.commit_sha, rank.label("rank"))
        .where(
            tables.SyncEvent.repository_id == repository_id,
            tables.SyncEvent.status == SyncStatus.SUCCESS.value,
        )
        .subquery()
    )
    rows = session.execute(sa.select(latest.c.branch, latest.c.commit_sha).where(latest.c.rank == 1))
    return {branch: commit for branch, commit in rows}


def _of_commit(repository_id: str, commit: str) -> sa.Select[tables.SyncedRollout]:
    return sa.select(tables.SyncedRollout).where(
        tables.SyncedRollout.repository_id == repository_id, tables.SyncedRollout.commit_sha == commit
    )


def _count(session: Session, repository_id: str, commit: str) -> int:
    query = _of_commit(repository_id, commit).where(tables.SyncedRollout.kind == "rollout")
    return count_of(session, query)
