"""Runs: their states, their names, their logs, how they end.

`switch_status` is the only place where a status changes; it writes the event beside it. Who works on a run is
decided in `job_queue`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import set_committed_value

from osmosis.errors import Conflict, NotFound, ValidationError
from osmosis.platform import tables
from osmosis.platform.db import changed_by
from osmosis.platform.tables import QueueState
from osmosis.records.base import utc_now
from osmosis.records.contract.body import moment
from osmosis.records.contract.run_bodies import RunEvent
from osmosis.records.marks import MarkChange
from osmosis.records.plan import RUN_NAME
from osmosis.records.report import Report
from osmosis.records.run import JobResult, LogLine, Stage
from osmosis.records.run_status import RunStatus

from . import run_marks, secrets
from .paging import Listing, PageRange

ALLOWED = {
    RunStatus.PENDING: {RunStatus.RUNNING, RunStatus.STOPPED, RunStatus.FAILED},
    RunStatus.RUNNING: {RunStatus.FINISHED, RunStatus.FAILED, RunStatus.STOPPED},
    RunStatus.FINISHED: {RunStatus.PENDING},
    RunStatus.FAILED: {RunStatus.PENDING},
    RunStatus.STOPPED: {RunStatus.PENDING},
}
MAX_LOG_MESSAGE = 16_000
SUBMITTED = ("eval", "training")
"""The kinds of runs that people submit and look at."""
SERVING: Final = "serving"
"""The kind of a deployment."""
MERGE: Final = "merge"
"""The kind of what makes a model of its own of an adapter."""


_NEWEST_FIRST = (
    sa.select(tables.Run)
    .where(tables.Run.workspace_id == sa.bindparam("workspace_id"), tables.Run.kind == sa.bindparam("kind"))
    .order_by(tables.Run.created_at.desc(), tables.Run.id)
)
_LISTED = Listing(_NEWEST_FIRST)


def switch_status(session: Session, run: tables.Run, status: RunStatus, reason: str = "") -> None:
    """Change a run's status and write the event. Conflict for a change that makes no sense, and where somebody else
    changed it since it was read: it is compared in the statement that sets it, on every database."""
    before = RunStatus(run.status)
    if status not in ALLOWED[before]:
        raise Conflict(f"run {run.name!r} is {before.value}, it cannot become {status.value}")
    now = utc_now()
    session.flush()
    compared = sa.update(tables.Run).where(tables.Run.id == run.id, tables.Run.status == before.value)
    values = {"status": status.value, "updated_at": now}
    if changed_by(session, compared.values(values), synchronize_session=False) != 1:
        raise Conflict(f"run {run.name!r} changed at the same moment", hint="look at it again, then repeat")
    for name, value in values.items():
        set_committed_value(run, name, value)
    if status is RunStatus.RUNNING:
        run.started_at = run.started_at or now
    if status is RunStatus.PENDING:
        run.completed_at, run.failure = None, None
    if status.over:
        run.completed_at = now
        run.stop_requested_at = None
        _close_jobs(session, run)
    session.add(tables.RunEvent(run_id=run.id, before=before.value, status=status.value, reason=reason, timestamp=now))


def _close_jobs(session: Session, run: tables.Run) -> None:
    """Nobody looks after the jobs of a run that is over; the leases stay known, for a last message that is repeated."""
    for job in jobs_of(session, run.id):
        job.state = QueueState.OVER
        job.handle = job.lease_until = None


def jobs_of(session: Session, run_id: str) -> list[tables.Job]:
    """In the order of their shards."""
    return list(session.scalars(sa.select(tables.Job).where(tables.Job.run_id == run_id).order_by(tables.Job.shard)))


_CALLED = [
    sa.select(tables.Run).where(
        tables.Run.workspace_id == sa.bindparam("workspace_id"),
        tables.Run.kind == sa.bindparam("kind"),
        column == sa.bindparam("called"),
    )
    for column in (tables.Run.name, tables.Run.id)
]
"""Built once, as everything here that is asked by whoever follows a run."""


def find(session: Session, workspace: tables.Workspace, kind: str, name_or_id: str) -> tables.Run:
    """By name first, then by id. NotFound otherwise."""
    given = {"workspace_id": workspace.id, "kind": kind, "called": name_or_id}
    for query in _CALLED:
        if (found := session.scalars(query, given).first()) is not None:
            return found
    raise NotFound(
        f"no {kind} run named {name_or_id!r} in workspace {workspace.name!r}",
        hint=f"osmosis {'eval' if kind == 'eval' else 'train'} list",
    )


def listed(
    session: Session, page: PageRange, workspace_id: str, kind: str, tag: str | None = None
) -> tuple[list[tables.Run], int]:
    """A page of the runs of a kind, or of those with a tag, newest first; and how many there are in all."""
    listing = Listing(_NEWEST_FIRST.where(run_marks.tagged(tag))) if tag else _LISTED
    return page.of(session, listing, workspace_id=workspace_id, kind=kind)


def next_name(session: Session, workspace_id: str, kind: str, rollout: str) -> str:
    """`<rollout>-<n>`, n one above the highest in use."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", rollout).strip("-.") or "run"
    query = sa.select(tables.Run.name).where(
        tables.Run.workspace_id == workspace_id, tables.Run.kind == kind, tables.Run.name.startswith(f"{stem}-")
    )
    numbers = [int(name[len(stem) + 1 :]) for name in session.scalars(query) if name[len(stem) + 1 :].isdigit()]
    return f"{stem}-{max(numbers, default=0) + 1}"


def log(session: Session, run_id: str, message: str, *, level: str = "info", step: str = "platform") -> None:
    """A line of the platform's own in a run's log."""
    session.add(tables.RunLog(run_id=run_id, level=level, step=step, message=storable(message)))


def add_lines(session: Session, run: tables.Run, lines: list[LogLine], *, shard: int | None = None) -> None:
    """Lines of the job; those of one of several shards say which."""
    mark = "" if shard is None else f"shard {shard + 1} "
    session.add_all(
        tables.RunLog(
            run_id=run.id,
            timestamp=line.timestamp,
            level=line.level,
            step=f"{mark}{line.step}"[:100],
            message=storable(line.message),
            details=line.details,
        )
        for line in lines
    )


def storable(message: str) -> str:
    """A log message as the database takes it: no NUL, of a bearable length."""
    return message.replace("\0", "")[:MAX_LOG_MESSAGE]


def end(session: Session, run: tables.Run, result: JobResult, reason: str) -> None:
    """Bring a run to its end and destroy what was given for it alone."""
    if result.report is not None:
        run.report = result.report.to_dict()
        _note_progress(run, result.report, result.status)
    if result.failure is not None:
        run.failure = result.failure.to_dict()
        log(session, run.id, result.failure.message, level="error")
    switch_status(session, run, result.status, reason or (result.failure.message if result.failure else ""))
    secrets.delete_of_run(session, run.id)


def _note_progress(run: tables.Run, report: Report, status: RunStatus) -> None:
    """How far the run came, by its report: a quick job ends before a heartbeat says so."""
    before = run.progress or tables.StoredProgress()
    stage = before.get("stage")
    if stage is None or status is RunStatus.FINISHED:
        stage = Stage.REPORT.value
    run.progress = {**before, "stage": stage, "completed": report.completed, "total": report.total}


def request_stop(session: Session, run: tables.Run) -> None:
    """Ask the job to stop; a run without a job stops at once; one that is over stays as it is."""
    status = RunStatus(run.status)
    if status.over:
        return
    run.stop_requested_at = run.stop_requested_at or utc_now()
    jobs = jobs_of(session, run.id)
    if status is RunStatus.RUNNING and len(jobs) > 1:
        leave_waiting(jobs)
        log(session, run.id, "stop requested")
    elif status is RunStatus.PENDING or not any(job.state == QueueState.HELD for job in jobs):
        end(session, run, JobResult(status=RunStatus.STOPPED), "stopped by request")
    else:
        log(session, run.id, "stop requested")


def prioritize(session: Session, run: tables.Run, priority: int, who: str) -> None:
    """Its place among those of its workspace that wait. Conflict for a run that has been begun."""
    if run.status != RunStatus.PENDING.value:
        raise Conflict(f"run {run.name!r} is {run.status}", hint="a priority orders runs that wait for their turn")
    run.priority = priority
    log(session, run.id, f"priority {priority}, set by {who}")


def leave_waiting(jobs: Sequence[tables.Job]) -> None:
    """Shards that nobody has begun stay undone: what the others have is merged without them."""
    for job in jobs:
        if job.state == QueueState.WAITING:
            job.state, job.status = QueueState.OVER, RunStatus.STOPPED.value


def delete(session: Session, run: tables.Run) -> None:
    """Remove a run that is over, with its rollouts and logs; its folder follows. Conflict otherwise."""
    if not RunStatus(run.status).over:
        raise Conflict(f"run {run.name!r} is {run.status}", hint="stop it first")
    secrets.delete_of_run(session, run.id)
    session.delete(run)


def mark(session: Session, run: tables.Run, asked: MarkChange) -> None:
    """Change what is written on a run, or its name. Conflict when another run of its kind has that name."""
    if asked.name is not None and asked.name != run.name:
        named = sa.select(tables.Run.id).where(
            tables.Run.workspace_id == run.workspace_id, tables.Run.kind == run.kind, tables.Run.name == asked.name
        )
        if session.scalar(named) is not None:
            raise Conflict(f"there is already a run named {asked.name}", hint="choose another name")
        run.name = checked_name(asked.name)
    run_marks.write(run, asked)


def checked_name(name: object) -> str:
    """A name that a run may have. ValidationError says what one is."""
    if not isinstance(name, str) or not RUN_NAME.match(name):
        hint = "1 to 96 letters, digits, . _ and -, starting with a letter or digit"
        raise ValidationError(f"name: {name!r} is not a name of a run", hint=hint, field="name")
    return name


_EVENTS = (
    sa.select(tables.RunEvent.timestamp, tables.RunEvent.before, tables.RunEvent.status, tables.RunEvent.reason)
    .where(tables.RunEvent.run_id == sa.bindparam("run_id"))
    .order_by(tables.RunEvent.id)
)


def events(session: Session, run_id: str) -> list[RunEvent]:
    """The history of a run's status, oldest first."""
    found = session.execute(_EVENTS, {"run_id": run_id})
    return [
        RunEvent.made(timestamp=moment(timestamp), before=before, status=status, reason=reason)
        for timestamp, before, status, reason in found
    ]


def over_among(session: Session, run_ids: Sequence[str]) -> list[str]:
    """Those of these runs that are over, or not known at all."""
    if not run_ids:
        return []
    live = (RunStatus.PENDING.value, RunStatus.RUNNING.value)
    query = sa.select(tables.Run.id).where(tables.Run.id.in_(run_ids[:1000]), tables.Run.status.in_(live))
    known = set(session.scalars(query))
    return [run_id for run_id in run_ids[:1000] if run_id not in known]
