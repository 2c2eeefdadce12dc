"""Runs: their states, their names, the queue and the leases.

`switch_status` is the only place where a status changes; it writes the event beside it. Who works on a run is
decided by the lease: its token is given to one job, and writes with another token are dropped (`LeaseLost`).
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import set_committed_value

from osmosis.errors import Conflict, LeaseLost, NotFound
from osmosis.platform import tables
from osmosis.platform.security.tokens import hash_token, new_token
from osmosis.records.base import utc_now
from osmosis.records.contract.body import moment
from osmosis.records.contract.run_bodies import RunEvent
from osmosis.records.report import Report
from osmosis.records.rollout import Failure
from osmosis.records.run import JobResult, LogLine, Progress, RunStatus, Stage

from . import secrets

ALLOWED = {
    RunStatus.PENDING: {RunStatus.RUNNING, RunStatus.STOPPED, RunStatus.FAILED},
    RunStatus.RUNNING: {RunStatus.FINISHED, RunStatus.FAILED, RunStatus.STOPPED},
    RunStatus.FINISHED: {RunStatus.PENDING},
    RunStatus.FAILED: {RunStatus.PENDING},
    RunStatus.STOPPED: {RunStatus.PENDING},
}
MAX_LOG_MESSAGE = 16_000


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
    done = session.execute(compared.values(values), execution_options={"synchronize_session": False})
    if done.rowcount != 1:  # type: ignore[attr-defined]
        raise Conflict(f"run {run.name!r} changed at the same moment", hint="look at it again, then repeat")
    for name, value in values.items():
        set_committed_value(run, name, value)
    if status is RunStatus.RUNNING:
        run.started_at = run.started_at or now
    if status is RunStatus.PENDING:
        run.completed_at, run.failure = None, None
    if status.over:
        run.completed_at = now
        run.handle = run.lease_until = run.stop_requested_at = None
    session.add(tables.RunEvent(run_id=run.id, before=before.value, status=status.value, reason=reason, timestamp=now))


def find(session: Session, workspace: tables.Workspace, kind: str, name_or_id: str) -> tables.Run:
    """By name first, then by id. NotFound otherwise."""
    for column in (tables.Run.name, tables.Run.id):
        query = sa.select(tables.Run).where(
            tables.Run.workspace_id == workspace.id, tables.Run.kind == kind, column == name_or_id
        )
        if (found := session.scalars(query).first()) is not None:
            return found
    raise NotFound(
        f"no {kind} run named {name_or_id!r} in workspace {workspace.name!r}",
        hint=f"osmosis {'eval' if kind == 'eval' else 'train'} list",
    )


def newest_first(workspace_id: str, kind: str) -> sa.Select[tables.Run]:
    return (
        sa.select(tables.Run)
        .where(tables.Run.workspace_id == workspace_id, tables.Run.kind == kind)
        .order_by(tables.Run.created_at.desc(), tables.Run.id)
    )


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


def add_lines(session: Session, run: tables.Run, lines: list[LogLine]) -> None:
    """Lines of the job."""
    session.add_all(
        tables.RunLog(
            run_id=run.id,
            timestamp=line.timestamp,
            level=line.level,
            step=line.step[:100],
            message=storable(line.message),
            details=line.details,
        )
        for line in lines
    )


def storable(message: str) -> str:
    """A log message as the database takes it: no NUL, of a bearable length."""
    return message.replace("\0", "")[:MAX_LOG_MESSAGE]


# --- the queue -------------------------------------------------------------------------------------------------


def waiting() -> sa.Select[tables.Run]:
    """Runs that need a job, oldest first: pending, or running without a lease, since their job is known to be gone."""
    gone = sa.and_(tables.Run.status == RunStatus.RUNNING.value, tables.Run.lease_hash.is_(None))
    query = sa.select(tables.Run).where(sa.or_(tables.Run.status == RunStatus.PENDING.value, gone))
    return query.order_by(tables.Run.created_at, tables.Run.id)


def claim(session: Session, worker: str, lease_s: float) -> tuple[tables.Run, str] | None:
    """Take the oldest run that waits, with a new lease token; None when none waits.

    One transaction on a locked row, so no two workers get the same.
    """
    run = session.scalars(waiting().limit(1).with_for_update(skip_locked=True)).first()
    if run is None:
        return None
    token = new_token("osj_")
    run.lease_hash, run.lease_until = hash_token(token), utc_now() + timedelta(seconds=lease_s)
    run.worker, run.handle = worker, None
    run.starts += 1
    if run.status == RunStatus.PENDING.value:
        switch_status(session, run, RunStatus.RUNNING, f"claimed by {worker}")
    else:
        log(session, run.id, f"restarting (start {run.starts})", level="warning")
    return run, token


def of_lease(session: Session, run_id: str, token: str) -> tables.Run:
    """The run this token speaks for. LeaseLost when another job does, or the run is over."""
    run = session.get(tables.Run, run_id, with_for_update=True)
    if run is None:
        raise NotFound(f"no run {run_id}")
    if run.lease_hash is None or run.lease_hash != hash_token(token):
        raise LeaseLost(f"another job has taken over run {run.name!r}")
    if run.status != RunStatus.RUNNING.value:
        raise LeaseLost(f"run {run.name!r} is {run.status}")
    return run


def extend(run: tables.Run, lease_s: float, now: datetime | None = None) -> None:
    run.lease_until = (now or utc_now()) + timedelta(seconds=lease_s)


def heartbeat(session: Session, run: tables.Run, progress: Progress, lease_s: float) -> bool:
    """Note how far the job is; whether it should stop is the answer."""
    extend(run, lease_s)
    run.progress = {"stage": progress.stage.value, "completed": progress.completed, "total": progress.total}
    if progress.sandbox:
        run.progress["sandbox"] = progress.sandbox
    if progress.report is not None:
        run.report = progress.report.to_dict()
    run.updated_at = utc_now()
    return run.stop_requested_at is not None


def release(session: Session, run: tables.Run, reason: str, *, max_starts: int, count: bool = True) -> None:
    """The job is gone without a word: the run waits for another, or has failed for good.

    `count=False` for a job that the platform itself ended: that start does not count.
    """
    run.lease_hash = run.lease_until = run.handle = None
    if not count:
        run.starts = max(0, run.starts - 1)
    if run.stop_requested_at is not None:
        end(session, run, JobResult(status=RunStatus.STOPPED), "stopped by request")
    elif run.starts >= max_starts:
        failure = Failure(
            phase="setup",
            category="server_died",
            message=f"the job ended {run.starts} times without a result; last time: {reason}",
            fix="read the run's log, then retry the run",
        )
        end(session, run, JobResult(status=RunStatus.FAILED, failure=failure), reason)
    else:
        log(session, run.id, reason, level="warning")


def finish(session: Session, run: tables.Run, result: JobResult, *, max_starts: int) -> None:
    """The job's last message. `stopped` without a request means it was interrupted: the run resumes later."""
    if result.status is RunStatus.STOPPED and run.stop_requested_at is None:
        if result.report is not None:
            run.report = result.report.to_dict()
        release(session, run, "the job was interrupted", max_starts=max_starts)
        return
    end(session, run, result, "")


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
    if status is RunStatus.PENDING or run.lease_hash is None:
        end(session, run, JobResult(status=RunStatus.STOPPED), "stopped by request")
    else:
        log(session, run.id, "stop requested")


def delete(session: Session, run: tables.Run) -> None:
    """Remove a run that is over, with its rollouts and logs; its folder follows. Conflict otherwise."""
    if not RunStatus(run.status).over:
        raise Conflict(f"run {run.name!r} is {run.status}", hint="stop it first")
    secrets.delete_of_run(session, run.id)
    session.delete(run)


def events(session: Session, run_id: str) -> list[RunEvent]:
    """The history of a run's status, oldest first."""
    query = sa.select(tables.RunEvent).where(tables.RunEvent.run_id == run_id).order_by(tables.RunEvent.id)
    return [
        RunEvent(timestamp=moment(event.timestamp), before=event.before, status=event.status, reason=event.reason)
        for event in session.scalars(query)
    ]
