"""Reading what Git Sync knows: branches, rollouts, events, and which commit a run will use.

Changes nothing. Functions that take a `Database` start git and therefore open their own short sessions.
"""

from __future__ import annotations

import difflib
import posixpath
from dataclasses import replace

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.errors import ValidationError
from osmosis.platform import tables
from osmosis.platform.db import Database, count_of
from osmosis.platform.settings import PlatformSettings
from osmosis.records.config import Experiment
from osmosis.records.contract.body import moment
from osmosis.records.contract.repository import (
    FoundCode,
    SyncedBranch,
    SyncedRepository,
    SyncedRollout,
    SyncEvent,
    SyncReport,
)
from osmosis.records.quarantine import NAME, RowQuarantine, quarantine_of

from . import mirror, repositories
from .discovery import Tree
from .mirror import MirrorPlace
from .syncing import CodeRef, known_branches


def code_for_run(
    db: Database,
    settings: PlatformSettings,
    repository_id: str,
    experiment: Experiment,
) -> CodeRef:
    """The commit a config means, checked to hold the rollout and its entrypoint.

    `commit_sha` pins, `branch` means that branch's latest synced
    commit, neither means the default branch's. ValidationError with the offending key otherwise.
    """
    with db.read() as session:
        repository = session.get_one(tables.Repository, repository_id)
        place = MirrorPlace.of(repository, settings)
        known = known_branches(session, repository_id)
    code = _resolve(place, known, settings, branch=experiment.branch, commit_sha=experiment.commit_sha)
    check_entrypoint(place, settings, code.commit_sha, rollout=experiment.rollout, entrypoint=experiment.entrypoint)
    return replace(code, quarantine=_quarantine(place, settings, code.commit_sha))


def _quarantine(place: MirrorPlace, settings: PlatformSettings, commit: str) -> RowQuarantine:
    """What the commit's file says. ValidationError for one that cannot be read: a gate that passes over it would decide
    by rows that somebody took out."""
    tree = Tree(place.git(settings.environ), commit)
    entries = tree.list([NAME])
    texts = tree.read(entries)
    try:
        if entries and NAME not in texts:
            raise ValidationError(f"{NAME} is too large, or not a file")
        return quarantine_of(texts.get(NAME, ""))
    except ValidationError as error:
        issue = {"key": NAME, "message": error.message}
        raise ValidationError(error.message, hint=error.hint, field=NAME, issues=[issue]) from error


def _resolve(
    place: MirrorPlace,
    known: dict[str, str],
    settings: PlatformSettings,
    *,
    branch: str | None,
    commit_sha: str | None,
) -> CodeRef:
    if commit_sha:
        full = mirror.find_commit(place, commit_sha, settings)
        if full is None:
            raise _wrong(
                "commit_sha",
                f"commit {commit_sha} is not in the connected repository",
                "push it, or pin another commit",
            )
        return CodeRef(full, None)
    name = branch or place.default_branch
    commit = known.get(name)
    if commit is None or mirror.branch_head(place, name, settings.environ) is None:
        gone = "no longer exists" if commit else "was never synced"
        raise _wrong("branch", f"branch {name} {gone}", f"push it (git push origin {name}), then run `osmosis sync`")
    return CodeRef(commit, name)


def check_entrypoint(
    place: MirrorPlace, settings: PlatformSettings, commit: str, *, rollout: str, entrypoint: str
) -> None:
    """ValidationError unless `rollouts/<rollout>/<entrypoint>` is a file in this commit. Starts git."""
    tree = Tree(place.git(settings.environ), commit)
    folder = f"rollouts/{rollout}"
    path = posixpath.normpath(f"{folder}/{entrypoint}")
    if path.startswith(f"{folder}/") and tree.has_file(path):
        return
    names = [entry.name for entry in tree.list(["rollouts/"]) if entry.is_folder]
    short = commit[:12]
    if rollout not in names:
        near = difflib.get_close_matches(rollout, names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it has: {', '.join(sorted(names)[:20]) or 'no rollout'}"
        raise _wrong("rollout", f"commit {short} has no rollouts/{rollout}", f"{hint} Commit, push and sync it first")
    raise _wrong("entrypoint", f"commit {short} has no file {path}", "commit and push it, or fix the entrypoint")


def _wrong(key: str, message: str, hint: str) -> ValidationError:
    issue = {"key": f"experiment_config.{key}", "message": message}
    return ValidationError(message, hint=hint, field=key, issues=[issue])


def rollouts(session: Session, repository: tables.Repository, branch: str | None = None) -> list[tables.SyncedRollout]:
    """The rollouts of a branch's latest synced commit (the default branch's when none is named), by name."""
    commit = known_branches(session, repository.id).get(branch or repository.default_branch)
    return found_in(session, repository.id, commit, kinds=("rollout",)) if commit else []


def found_in(
    session: Session, repository_id: str, commit: str, *, kinds: tuple[str, ...] = ()
) -> list[tables.SyncedRollout]:
    """Everything a synced commit holds (rollouts, configs, functions of the older layout), by kind and name."""
    query = sa.select(tables.SyncedRollout).where(
        tables.SyncedRollout.repository_id == repository_id, tables.SyncedRollout.commit_sha == commit
    )
    if kinds:
        query = query.where(tables.SyncedRollout.kind.in_(kinds))
    return list(session.scalars(query.order_by(tables.SyncedRollout.kind, tables.SyncedRollout.name)))


def events(
    session: Session, repository_id: str, *, limit: int = 20, offset: int = 0
) -> tuple[list[tables.SyncEvent], int]:
    """Sync events, newest first, and how many there are."""
    mine = tables.SyncEvent.repository_id == repository_id
    query = sa.select(tables.SyncEvent).where(mine).order_by(tables.SyncEvent.created_at.desc())
    total = count_of(session, query)
    return list(session.scalars(query.limit(limit).offset(offset))), total


def event_body(event: tables.SyncEvent) -> SyncEvent:
    """A sync event as clients read it."""
    return SyncEvent(
        id=event.id,
        status=event.status,
        branch=event.branch,
        commit_sha=event.commit_sha or None,
        author=event.author,
        message=event.message,
        rollouts_found=event.rollouts_found,
        error=event.error,
        created_at=moment(event.created_at),
        finished_at=moment(event.finished_at),
    )


def rollout_body(row: tables.SyncedRollout, repository: tables.Repository) -> SyncedRollout:
    """A synced rollout as clients read it (`GET rollouts`)."""
    return SyncedRollout(
        id=row.id,
        name=row.name,
        description=row.description,
        is_active=repository.status == "active",
        last_synced_commit_sha=row.commit_sha,
        last_synced_at=moment(repository.last_synced_at),
        repo_full_name=repository.full_name,
        created_at=moment(row.created_at),
    )


def state(session: Session, settings: PlatformSettings, repository: tables.Repository) -> SyncReport:
    """All of `GET sync`: the repository, its branches as synced, the latest events."""
    latest, total = events(session, repository.id)
    about = SyncedRepository(
        full_name=repository.full_name,
        url=repositories.address(settings, repository),
        kind=repository.kind,
        status=repository.status,
    )
    branches = sorted(known_branches(session, repository.id).items())
    commit = repository.last_synced_commit
    held = found_in(session, repository.id, commit) if commit else []
    return SyncReport(
        repository=about,
        status=latest[0].status if latest else None,
        default_branch=repository.default_branch,
        last_synced_commit_sha=repository.last_synced_commit,
        last_synced_at=moment(repository.last_synced_at),
        branches=[SyncedBranch(name=name, commit_sha=commit) for name, commit in branches],
        events=[event_body(event) for event in latest],
        total_events=total,
        found=[FoundCode(kind=row.kind, name=row.name, path=row.path, description=row.description) for row in held],
    )
