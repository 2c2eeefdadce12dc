"""Git Sync, with no session open: a git failure is an event with its text, never an exception."""

import difflib
import logging
import math
import posixpath
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.base.locks import lock_if_free
from osmosis.base.redact import without_credentials
from osmosis.errors import OsmosisError, ValidationError
from osmosis.platform import tables
from osmosis.platform.db import Database, count_of
from osmosis.platform.git import mirror, repositories
from osmosis.platform.git.discovery import FoundItem, Tree, discover
from osmosis.platform.git.mirror import Branch, RepositoryFolder
from osmosis.platform.settings import PlatformSettings
from osmosis.records.api import workspaces as workspace_api
from osmosis.records.api.body import format_moment
from osmosis.records.base import utc_now
from osmosis.records.config.experiment import Environment, Experiment
from osmosis.records.run.job import SyncStatus
from osmosis.records.run.rows import NAME, RowQuarantine, parse_quarantine

log = logging.getLogger(__name__)

MAX_BRANCHES = 200
_OPEN = (SyncStatus.PENDING.value, SyncStatus.SYNCING.value)


@dataclass(frozen=True, slots=True)
class CodeRef:
    commit_sha: str
    branch: str | None
    quarantine: RowQuarantine = field(default_factory=RowQuarantine)


def add_event(session: Session, repository: tables.Repository) -> tables.SyncEvent:
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
    with db.write() as session:
        event = session.get(tables.SyncEvent, event_id)
        if event is None or event.status not in _OPEN:
            return
        repository = session.get(tables.Repository, event.repository_id)
        if repository is None:
            return
        folder = _limited(repository, settings, since=event.created_at)
    try:
        with mirror.locked(folder):
            with db.write() as session:
                # The lock is held, so others that are syncing, or waited too long, were cut off.
                overdue = utc_now() - timedelta(seconds=settings.sync_limit_s + 60)
                events = tables.SyncEvent
                waited_out = (events.status == SyncStatus.PENDING.value) & (events.created_at < overdue)
                session.execute(
                    sa.update(events)
                    .where(events.repository_id == folder.id, events.id != event_id)
                    .where((events.status == SyncStatus.SYNCING.value) | waited_out)
                    .values(
                        status=SyncStatus.FAILED.value,
                        error="the platform stopped during this sync",
                        finished_at=utc_now(),
                    )
                )
                session.execute(sa.update(events).where(events.id == event_id).values(status=SyncStatus.SYNCING.value))
            _sync_branches(db, settings, folder, mirror.fetch(folder, settings), event_id=event_id)
    except OsmosisError as error:
        _fail(db, event_id, _error_text(error))
    except Exception as error:
        # The border of a background job: the event must say how it ended.
        log.exception("sync of repository %s failed", folder.id)
        _fail(db, event_id, f"internal error during this sync: {type(error).__name__}")
    _tidy(folder, settings)


def _limited(
    repository: tables.Repository, settings: PlatformSettings, *, since: datetime | None = None
) -> RepositoryFolder:
    waited = (utc_now() - since).total_seconds() if since else 0.0
    limit = settings.sync_limit_s
    return RepositoryFolder.of(repository, settings).within(max(0.0, limit - waited), limit_s=limit)


def poll(db: Database, settings: PlatformSettings, repository_id: str, *, kind: str = "external") -> None:
    """Sync what moved; repeated failures of an external repository for the same reason leave one event."""
    with db.read() as session:
        repository = session.get(tables.Repository, repository_id)
        if repository is None or repository.kind != kind:
            return
        folder = _limited(repository, settings)
    try:
        with mirror.locked(folder):
            _sync_branches(db, settings, folder, mirror.fetch(folder, settings), event_id=None)
        _tidy(folder, settings)
    except OsmosisError as error:
        log.warning("repository %s could not be synced: %s", folder.id, without_credentials(error.message))
        _note_failure(db, folder, _error_text(error))


def _note_failure(db: Database, folder: RepositoryFolder, text: str) -> None:
    with db.write() as session:
        repository = session.get(tables.Repository, folder.id)
        if repository is None:
            return
        query = sa.select(tables.SyncEvent).where(tables.SyncEvent.repository_id == folder.id)
        last = session.scalars(query.order_by(tables.SyncEvent.created_at.desc()).limit(1)).first()
        as_before = SyncStatus.FAILED.value, without_credentials(text)
        if folder.kind == "external" and last is not None and (last.status, last.error) == as_before:
            return
        event_id = add_event(session, repository).id
    _fail(db, event_id, text)


def _error_text(error: OsmosisError) -> str:
    return f"{error.message}; {error.hint}" if error.hint else error.message


def list_external(db: Database) -> list[str]:
    query = sa.select(tables.Repository.id).filter_by(kind="external", status="active")
    with db.read() as session:
        return list(session.scalars(query))


def _tidy(folder: RepositoryFolder, settings: PlatformSettings) -> None:
    try:
        with lock_if_free(mirror.lock_file(folder)) as free:
            if free:
                git = replace(folder, until=math.inf).git(settings.environ, **mirror.GC_SETTINGS)
                git.run("gc", "--auto", "--quiet", timeout_s=mirror.FETCH_TIMEOUT_S)
    except OsmosisError as error:
        log.warning("repository %s could not be packed: %s", folder.id, error.message)


def _sync_branches(
    db: Database, settings: PlatformSettings, folder: RepositoryFolder, named: str | None, *, event_id: str | None
) -> None:
    heads = mirror.list_branches(folder, settings.environ)
    default = mirror.settle_default_branch(folder, named, heads, settings.environ)
    with db.read() as session:
        synced = known_branches(session, folder.id)
    moved = [head for head in heads if synced.get(head.branch) != head.commit]
    moved.sort(key=lambda head: head.branch != default)  # stable: the default branch first, then the newest
    moved = moved[:MAX_BRANCHES]
    if not moved and event_id is None:
        return
    if not heads:
        raise ValidationError("the repository has no branches yet: push one, then sync again")
    contents = {commit: _contents(db, settings, folder, commit) for commit in {head.commit for head in moved}}
    if contents:
        lines = "".join(f"update {mirror.SYNCED_REFS}/{commit} {commit}\n" for commit in contents)
        folder.git(settings.environ).run("update-ref", "--stdin", stdin=lines.encode())
    changed = moved or [head for head in heads if head.branch == default] or heads[:1]
    tip = next((head for head in heads if head.branch == default), None)
    _store(db, folder, default, changed, contents, event_id=event_id, tip=tip)


def _contents(
    db: Database, settings: PlatformSettings, folder: RepositoryFolder, commit: str
) -> list[FoundItem] | None:
    folder.seconds(mirror.COMMAND_TIMEOUT_S)  # reading a commit is none of git's own steps
    with db.read() as session:
        if session.scalar(_of_commit(folder.id, commit).limit(1)) is not None:
            return None
    return discover(Tree(folder.git(settings.environ), commit))


def _store(
    db: Database,
    folder: RepositoryFolder,
    default: str,
    heads: list[Branch],
    contents: dict[str, list[FoundItem] | None],
    *,
    event_id: str | None,
    tip: Branch | None,
) -> None:
    with db.write() as session:
        repository = session.get(tables.Repository, folder.id)
        if repository is None:
            return
        for head in heads:
            for item in contents.pop(head.commit, None) or ():
                row = {"repository_id": folder.id, "branch": head.branch, "commit_sha": head.commit, **asdict(item)}
                session.add(tables.SyncedRollout(**row))
        session.flush()
        for head in heads:
            event = session.get(tables.SyncEvent, event_id) if event_id else None
            event_id = None  # the requested event tells of the first branch, further branches get their own
            event = event or add_event(session, repository)
            event.branch, event.commit_sha = head.branch, head.commit
            event.author, event.message = head.author, head.message
            rollouts = _of_commit(folder.id, head.commit).where(tables.SyncedRollout.kind == "rollout")
            event.rollouts_found = count_of(session, rollouts)
            event.status, event.error, event.finished_at = SyncStatus.SUCCESS.value, None, utc_now()
        repository.default_branch = default
        repository.last_synced_at = utc_now()
        repository.last_synced_commit = tip.commit if tip else None


def _fail(db: Database, event_id: str, text: str) -> None:
    with db.write() as session:
        event = session.get(tables.SyncEvent, event_id)
        if event is not None:
            event.status, event.error = SyncStatus.FAILED.value, without_credentials(text)
            event.finished_at = utc_now()


def recover(db: Database) -> None:
    """Mark syncs that a former process left open as failed; one still at work overwrites this with its own end."""
    with db.write() as session:
        left_open = sa.update(tables.SyncEvent).where(tables.SyncEvent.status.in_(_OPEN))
        values = {"status": SyncStatus.FAILED.value, "finished_at": utc_now()}
        session.execute(left_open.values(error="the platform was stopped during this sync; sync again", **values))


def known_branches(session: Session, repository_id: str) -> dict[str, str]:
    rank = sa.func.row_number().over(partition_by=tables.SyncEvent.branch, order_by=tables.SyncEvent.finished_at.desc())
    latest = (
        sa.select(tables.SyncEvent.branch, tables.SyncEvent.commit_sha, rank.label("rank"))
        .where(tables.SyncEvent.repository_id == repository_id, tables.SyncEvent.status == SyncStatus.SUCCESS.value)
        .subquery()
    )
    rows = session.execute(sa.select(latest.c.branch, latest.c.commit_sha).where(latest.c.rank == 1))
    return {branch: commit for branch, commit in rows}


def _of_commit(repository_id: str, commit: str) -> sa.Select[tables.SyncedRollout]:
    return sa.select(tables.SyncedRollout).filter_by(repository_id=repository_id, commit_sha=commit)


def code_for_run(
    db: Database, settings: PlatformSettings, repository_id: str, environments: Mapping[str, Experiment]
) -> CodeRef:
    """Return the commit that a config means, which has its entrypoints. ValidationError names the key."""
    with db.read() as session:
        folder = RepositoryFolder.of(session.get_one(tables.Repository, repository_id), settings)
        branches = known_branches(session, repository_id)
    code = _resolve(folder, branches, settings, environments["experiment"])
    for table, environment in environments.items():
        _check_entrypoint(folder, settings, code.commit_sha, environment, table)
    return replace(code, quarantine=_quarantine(folder, settings, code.commit_sha))


def _quarantine(folder: RepositoryFolder, settings: PlatformSettings, commit: str) -> RowQuarantine:
    """Read the commit's quarantine file; ValidationError when it is unreadable: its rows would decide otherwise."""
    tree = Tree(folder.git(settings.environ), commit)
    entries = tree.list([NAME])
    texts = tree.read(entries)
    try:
        if entries and NAME not in texts:
            raise ValidationError(f"{NAME} is too large, or not a file")
        return parse_quarantine(texts.get(NAME, ""))
    except ValidationError as error:
        issue = {"key": NAME, "message": error.message}
        raise ValidationError(error.message, hint=error.hint, field=NAME, issues=[issue]) from error


def _resolve(
    folder: RepositoryFolder, branches: dict[str, str], settings: PlatformSettings, named: Experiment
) -> CodeRef:
    if named.commit_sha:
        full = mirror.find_commit(folder, named.commit_sha, settings)
        if full is None:
            message = f"commit {named.commit_sha} is not in the connected repository"
            raise _wrong("commit_sha", message, "push it, or pin another commit")
        return CodeRef(full, None)
    name = named.branch or folder.default_branch
    commit = branches.get(name)
    if commit is None or mirror.branch_head(folder, name, settings.environ) is None:
        reason = "no longer exists" if commit else "was never synced"
        raise _wrong("branch", f"branch {name} {reason}", f"push it (git push origin {name}), then run `osmosis sync`")
    return CodeRef(commit, name)


def _check_entrypoint(
    repo_folder: RepositoryFolder, settings: PlatformSettings, commit: str, environment: Environment, table: str
) -> None:
    rollout = environment.rollout
    tree = Tree(repo_folder.git(settings.environ), commit)
    folder = f"rollouts/{rollout}"
    path = posixpath.normpath(f"{folder}/{environment.file}")
    if path.startswith(f"{folder}/") and any(each.is_file and each.path == path for each in tree.list([path])):
        return
    names = [entry.name for entry in tree.list(["rollouts/"]) if entry.is_folder]
    short = commit[:12]
    if rollout not in names:
        near = difflib.get_close_matches(rollout, names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it has: {', '.join(sorted(names)[:20]) or 'no rollout'}"
        message = f"commit {short} has no rollouts/{rollout}"
        raise _wrong("rollout", message, f"{hint} Commit, push and sync it first", table)
    key = "entrypoint" if environment.command is None else "grader"
    raise _wrong(key, f"commit {short} has no file {path}", f"commit and push it, or fix the {key}", table)


def _wrong(key: str, message: str, hint: str, table: str = "experiment") -> ValidationError:
    issue = {"key": f"{table}.{key}", "message": message}
    return ValidationError(message, hint=hint, field=key, issues=[issue])


def list_rollouts(
    session: Session, repository: tables.Repository, branch: str | None = None
) -> list[tables.SyncedRollout]:
    commit = known_branches(session, repository.id).get(branch or repository.default_branch)
    return list_contents(session, repository.id, commit, kinds=("rollout",)) if commit else []


def list_contents(
    session: Session, repository_id: str, commit: str, *, kinds: tuple[str, ...] = ()
) -> list[tables.SyncedRollout]:
    query = _of_commit(repository_id, commit)
    if kinds:
        query = query.where(tables.SyncedRollout.kind.in_(kinds))
    return list(session.scalars(query.order_by(tables.SyncedRollout.kind, tables.SyncedRollout.name)))


def list_events(session: Session, repository_id: str, *, limit: int = 20) -> tuple[list[tables.SyncEvent], int]:
    mine = tables.SyncEvent.repository_id == repository_id
    query = sa.select(tables.SyncEvent).where(mine).order_by(tables.SyncEvent.created_at.desc())
    return list(session.scalars(query.limit(limit))), count_of(session, query)


def to_sync_event(event: tables.SyncEvent) -> workspace_api.SyncEvent:
    return workspace_api.SyncEvent.from_row(event, commit_sha=event.commit_sha or None)


def to_synced_rollout(row: tables.SyncedRollout, repository: tables.Repository) -> workspace_api.SyncedRollout:
    return workspace_api.SyncedRollout.from_row(
        row,
        is_active=repository.status == "active",
        last_synced_commit_sha=row.commit_sha,
        last_synced_at=repository.last_synced_at,
        repo_full_name=repository.full_name,
    )


def build_report(
    session: Session, settings: PlatformSettings, repository: tables.Repository
) -> workspace_api.SyncReport:
    latest, total = list_events(session, repository.id)
    url, kind, status = repositories.clone_url(settings, repository), repository.kind, repository.status
    about = workspace_api.SyncedRepository(full_name=repository.full_name, url=url, kind=kind, status=status)
    branches = sorted(known_branches(session, repository.id).items())
    commit = repository.last_synced_commit
    contents = list_contents(session, repository.id, commit) if commit else []
    return workspace_api.SyncReport(
        repository=about,
        status=latest[0].status if latest else None,
        default_branch=repository.default_branch,
        last_synced_commit_sha=repository.last_synced_commit,
        last_synced_at=format_moment(repository.last_synced_at),
        branches=[workspace_api.SyncedBranch(name=name, commit_sha=commit) for name, commit in branches],
        events=[to_sync_event(event) for event in latest],
        total_events=total,
        found=[workspace_api.FoundCode.from_row(row) for row in contents],
    )
