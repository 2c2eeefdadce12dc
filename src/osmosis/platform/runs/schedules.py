"""Evaluations that the platform repeats (`[schedule]`), with the workspace's secrets and nobody's own."""

import logging
from dataclasses import replace
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Session, joinedload

from osmosis.errors import Conflict, NotFound, OsmosisError
from osmosis.platform import Platform, tables
from osmosis.platform.db import changed_by
from osmosis.platform.runs import notices, submit
from osmosis.platform.workspaces import audit
from osmosis.records.base import utc_now
from osmosis.records.config.run_config import EvalConfig, parse_interval
from osmosis.records.run.status import RunStatus

log = logging.getLogger(__name__)


def list_schedules(session: Session, workspace_id: str) -> list[tables.Schedule]:
    query = sa.select(tables.Schedule).filter_by(workspace_id=workspace_id).order_by(tables.Schedule.name)
    shown_later = joinedload(tables.Schedule.last_run), joinedload(tables.Schedule.creator)
    return list(session.scalars(query.options(*shown_later)))


def stop(session: Session, actor: audit.Actor, workspace: tables.Workspace, name: str) -> None:
    schedule = session.scalars(sa.select(tables.Schedule).filter_by(workspace_id=workspace.id, name=name)).first()
    if schedule is None:
        raise NotFound(f"{workspace.name} has no schedule {name!r}", hint="osmosis eval schedules")
    session.delete(schedule)
    audit.note(session, actor, "schedule.stop", name, workspace=workspace)


def submit_due(platform: Platform, now: datetime | None = None) -> None:
    """Submit the next run of each schedule that is due; of several times that were missed, there is one run."""
    now = now or utc_now()
    query = sa.select(tables.Schedule).where(tables.Schedule.next_at <= now)
    with platform.db.read() as session:
        due = list(session.scalars(query.order_by(tables.Schedule.next_at)))
    for schedule in due:
        every = parse_interval(schedule.every)
        following = schedule.next_at + every * ((now - schedule.next_at) // every + 1)
        same = tables.Schedule.id == schedule.id, tables.Schedule.next_at == schedule.next_at
        with platform.db.write() as session:  # no other process submits it
            is_claimed = changed_by(session, sa.update(tables.Schedule).where(*same).values(next_at=following)) == 1
        if is_claimed:
            _submit_next(platform, schedule)


def _submit_next(platform: Platform, schedule: tables.Schedule) -> None:
    try:
        with platform.db.read() as session:
            workspace = session.get_one(tables.Workspace, schedule.workspace_id)
            last = session.get(tables.Run, schedule.last_run_id) if schedule.last_run_id else None
            if last is not None and not RunStatus(last.status).over:
                raise Conflict(f"{last.name} of the time before is still {last.status}")
        request = submit.RunRequest(EvalConfig.model_validate(schedule.config), {}, tags=schedule.tags)
        request = replace(request, submitter=f"schedule {schedule.name}")
        order = submit.check(platform, workspace, None, request, kind="eval")
        with platform.db.write() as session:
            row = session.get(tables.Schedule, schedule.id, with_for_update=True)
            if row is not None:  # else it was stopped meanwhile
                row.last_run_id, row.error = submit.insert(session, platform.vault, order).id, ""
    except OsmosisError as problem:
        _note_failure(platform, schedule, problem.message)
    except Exception as problem:  # the border of one schedule: the others come next
        log.exception("schedule %s failed", schedule.id)
        _note_failure(platform, schedule, f"internal error: {type(problem).__name__}")


def _note_failure(platform: Platform, schedule: tables.Schedule, reason: str) -> None:
    text = f"schedule {schedule.name} submitted no run: {reason}"
    log.warning("%s", text)
    with platform.db.write() as session:
        row = session.get(tables.Schedule, schedule.id)
        if row is None:
            return
        row.error = reason
        workspace = session.get_one(tables.Workspace, row.workspace_id)
        audit.note(session, None, "schedule.failed", row.name, workspace=workspace, reason=reason)
        if (notify := notices.find_notify(row.config)) is not None:
            notices.enqueue(session, row.workspace_id, notify, "schedule.failed", text, reason=reason)
