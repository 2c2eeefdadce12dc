"""Runs: status, names, logs, and how they end. Only `switch_status` changes a status; it writes the event too."""

import re
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import set_committed_value

from osmosis.errors import Conflict, NotFound, ValidationError
from osmosis.platform import tables
from osmosis.platform.db import changed_by, take_turn
from osmosis.platform.paging import PageRange
from osmosis.platform.runs import notices, rollouts
from osmosis.platform.scheduling.transitions import change_state, skip
from osmosis.platform.workspaces import secrets
from osmosis.records.api.runs import RunEvent
from osmosis.records.base import utc_now
from osmosis.records.run.annotations import MarkChange
from osmosis.records.run.job import ALARM, JobResult, LogLine, Stage
from osmosis.records.run.plan import RUN_NAME
from osmosis.records.run.rollout import Category, Failure, Phase
from osmosis.records.run.status import RunStatus

ALLOWED = {
    RunStatus.PENDING: {RunStatus.RUNNING, RunStatus.STOPPED, RunStatus.FAILED},
    RunStatus.RUNNING: {RunStatus.FINISHED, RunStatus.FAILED, RunStatus.STOPPED},
    RunStatus.FINISHED: {RunStatus.PENDING},
    RunStatus.FAILED: {RunStatus.PENDING},
    RunStatus.STOPPED: {RunStatus.PENDING},
}
MAX_LOG_MESSAGE = 16_000
SUBMITTED = ("eval", "training")


def switch_status(session: Session, work: tables.Work, status: RunStatus, reason: str = "") -> None:
    """Change a status if nobody changed it since it was read, and write a run's event. Raise Conflict."""
    before, table = RunStatus(work.status), type(work)
    if status not in ALLOWED[before]:
        raise Conflict(f"run {work.name!r} is {before.value}, it cannot become {status.value}")
    now = utc_now()
    session.flush()
    compared = sa.update(table).where(table.id == work.id, table.status == before.value)
    values = {"status": status.value, "updated_at": now}
    if changed_by(session, compared.values(values), synchronize_session=False) != 1:
        raise Conflict(f"run {work.name!r} changed at the same moment", hint="look at it again, then repeat")
    for name, value in values.items():
        set_committed_value(work, name, value)
    if status is RunStatus.RUNNING:
        work.started_at = work.started_at or now
    if status is RunStatus.PENDING:
        work.completed_at, work.failure = None, None
    if status.over:
        work.completed_at = now
        work.stop_requested_at = None
        for job in list_jobs(session, work):
            change_state(job, "close")
    if isinstance(work, tables.Run):
        event = tables.RunEvent(run_id=work.id, before=before.value, status=status.value, reason=reason, timestamp=now)
        session.add(event)
        if status.over:
            notices.note_end(session, work)


def list_jobs(session: Session, work: tables.Work) -> list[tables.Job]:
    return list(session.scalars(sa.select(tables.Job).filter_by(**work.reference).order_by(tables.Job.shard)))


def find_work(session: Session, work_id: str) -> tables.Work | None:
    return next((work for table in tables.WORK_TABLES if (work := session.get(table, work_id)) is not None), None)


def get_work(session: Session, job: tables.Job) -> tables.Work:
    work = find_work(session, job.work_id)
    assert work is not None, "a job is deleted with what it belongs to"
    return work


def is_live(table: type[tables.Work]) -> sa.ColumnElement[bool]:
    return table.status.in_((RunStatus.PENDING.value, RunStatus.RUNNING.value))


def find(session: Session, workspace: tables.Workspace, kind: str, name_or_id: str) -> tables.Run:
    of_kind = sa.select(tables.Run).where(tables.Run.workspace_id == workspace.id, tables.Run.kind == kind)
    for column in (tables.Run.name, tables.Run.id):
        if (run := session.scalars(of_kind.where(column == name_or_id)).first()) is not None:
            return run
    message = f"no {kind} run named {name_or_id!r} in workspace {workspace.name!r}"
    raise NotFound(message, hint=f"osmosis {'eval' if kind == 'eval' else 'train'} list")


def list_runs(
    session: Session, page: PageRange, workspace_id: str, kind: str, tag: str | None = None
) -> tuple[list[tables.Run], int]:
    query = sa.select(tables.Run).where(tables.Run.workspace_id == workspace_id, tables.Run.kind == kind)
    if tag:
        query = query.where(rollouts.has_tag(tag))
    return page.fetch(session, query.order_by(tables.Run.created_at.desc(), tables.Run.id))


def work_folder(work: tables.Work, job: tables.Job | None = None) -> str:
    """Return where a job works, below a folder of runs; without a job: where files sent by jobs go."""
    parts = [work.id]
    if isinstance(work, tables.Run) and work.retries:
        parts.append(f"retry-{work.retries}")
    if job is not None and job.shards > 1:
        parts.append(f"shard-{job.shard}")
    return "/".join(parts)


def next_name(
    session: Session, workspace_id: str, rollout: str, table: type[tables.Run | tables.BenchmarkRun] = tables.Run
) -> str:
    take_turn(session, f"run names of {workspace_id}")
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", rollout).strip("-.") or "run"
    same = table.workspace_id == workspace_id, table.name.startswith(f"{stem}-")
    query = sa.select(table.name).where(*same)
    numbers = [int(name[len(stem) + 1 :]) for name in session.scalars(query) if name[len(stem) + 1 :].isdigit()]
    return f"{stem}-{max(numbers, default=0) + 1}"


def log(session: Session, work: tables.Work, message: str, *, level: str = "info", step: str = "platform") -> None:
    session.add(tables.RunLog(**work.reference, level=level, step=step, message=clean_message(message)))


def add_lines(session: Session, work: tables.Work, lines: list[LogLine], *, shard: int | None = None) -> None:
    mark = "" if shard is None else f"shard {shard + 1} "
    session.add_all(
        tables.RunLog(
            **work.reference,
            timestamp=line.timestamp,
            level=line.level,
            step=f"{mark}{line.step}"[:100],
            message=clean_message(line.message),
            details=line.details,
        )
        for line in lines
    )
    for line in lines:
        if line.step == ALARM and isinstance(work, tables.Run):
            notices.note_alarm(session, work, clean_message(line.message))


def clean_message(message: str) -> str:
    return message.replace("\0", "")[:MAX_LOG_MESSAGE]


def end(session: Session, work: tables.Work, result: JobResult, reason: str) -> None:
    if result.report is not None and isinstance(work, tables.Run):
        work.report = result.report.to_dict()
        before = work.progress or tables.StoredProgress()
        stage = before.get("stage")
        if stage is None or result.status is RunStatus.FINISHED:
            stage = Stage.REPORT.value
        work.progress = {**before, "stage": stage, "completed": result.report.completed, "total": result.report.total}
    if result.failure is not None:
        work.failure = result.failure.to_dict()
        log(session, work, result.failure.message, level="error")
    switch_status(session, work, result.status, reason or (result.failure.message if result.failure else ""))
    secrets.delete_of(session, "run", work.id)


def fail(
    session: Session, work: tables.Work, message: str, *, fix: str | None, category: Category, reason: str = ""
) -> None:
    failure = Failure(phase=Phase.SETUP, category=category, message=message, fix=fix)
    end(session, work, JobResult(status=RunStatus.FAILED, failure=failure), reason)


def request_stop(session: Session, work: tables.Work) -> None:
    """Ask the job to stop; a run without a job stops at once, one that is over stays."""
    status = RunStatus(work.status)
    if status.over:
        return
    work.stop_requested_at = work.stop_requested_at or utc_now()
    jobs = list_jobs(session, work)
    if status is RunStatus.RUNNING and len(jobs) > 1:
        skip_waiting(jobs)
        log(session, work, "stop requested")
    elif status is RunStatus.PENDING or not any(job.state == tables.QueueState.HELD for job in jobs):
        end(session, work, JobResult(status=RunStatus.STOPPED), "stopped by request")
    else:
        log(session, work, "stop requested")


def prioritize(session: Session, run: tables.Run, priority: int, person: str) -> None:
    if run.status != RunStatus.PENDING.value:
        raise Conflict(f"run {run.name!r} is {run.status}", hint="a priority orders runs that wait for their turn")
    run.priority = priority
    for job in list_jobs(session, run):
        job.priority = priority
    log(session, run, f"priority {priority}, set by {person}")


def skip_waiting(jobs: Sequence[tables.Job]) -> None:
    for job in jobs:
        if job.state == tables.QueueState.WAITING:
            skip(job)


def delete(session: Session, run: tables.Run) -> None:
    if not RunStatus(run.status).over:
        raise Conflict(f"run {run.name!r} is {run.status}", hint="stop it first")
    secrets.delete_of(session, "run", run.id)
    session.delete(run)


def refuse_taken(session: Session, workspace_id: str, name: str) -> None:
    """Raise Conflict if a submitted run has this name, also of two that are submitted at once."""
    take_turn(session, f"run names of {workspace_id}")
    named = sa.select(tables.Run.id).where(tables.Run.workspace_id == workspace_id, tables.Run.name == name)
    if session.scalars(named.where(tables.Run.kind.in_(SUBMITTED))).first() is not None:
        raise Conflict(f"there is already a run named {name}", hint="choose another name")


def mark(session: Session, run: tables.Run, change: MarkChange) -> None:
    if change.name is not None and change.name != run.name:
        refuse_taken(session, run.workspace_id, change.name)
        run.name = parse_name(change.name)
    rollouts.write_marks(run, change)


def parse_name(name: object) -> str:
    if not isinstance(name, str) or not RUN_NAME.match(name):
        hint = "1 to 96 letters, digits, . _ and -, starting with a letter or digit"
        raise ValidationError(f"name: {name!r} is not a name of a run", hint=hint, field="name")
    return name


def list_events(session: Session, run_id: str) -> list[RunEvent]:
    query = sa.select(tables.RunEvent).where(tables.RunEvent.run_id == run_id).order_by(tables.RunEvent.id)
    return [RunEvent.from_row(row) for row in session.scalars(query)]


def list_over(session: Session, run_ids: Sequence[str]) -> list[str]:
    if not run_ids:
        return []
    running: set[str] = set()
    for table in tables.WORK_TABLES:
        running.update(session.scalars(sa.select(table.id).where(table.id.in_(run_ids[:1000]), is_live(table))))
    return [run_id for run_id in run_ids[:1000] if run_id not in running]


def duration_ms(run: tables.Run) -> float | None:
    if run.started_at is None:
        return None
    return ((run.completed_at or utc_now()) - run.started_at).total_seconds() * 1000.0
