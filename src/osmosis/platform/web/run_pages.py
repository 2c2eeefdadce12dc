"""Runs: the overview, and one run's pages (figures, configuration, log), live while it goes on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Form, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from sqlalchemy.orm import Session

from osmosis.errors import NotFound
from osmosis.records.run import RunStatus

from .. import tables
from ..context import Platform
from ..services import retry, rollouts, runs, workspaces
from ..services.pages import LogSlice
from .live import live_pages
from .render import SECURITY, PageRoute, fragment, html, page, redirect
from .run_view import RunView, config_lines, curves, histogram, view
from .session import Viewer, check_viewer_form, platform_of, viewer

router = APIRouter(route_class=PageRoute, include_in_schema=False)
ViewerDep = Annotated[Viewer, Depends(viewer)]

PER_PAGE = 25
LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class Found:
    """A run that the viewer may see."""

    run: tables.Run
    workspace: tables.Workspace
    creator: tables.User | None
    repository: tables.Repository | None


def find_run(session: Session, who: Viewer, run_id: str) -> Found:
    """NotFound unless it exists in a workspace of the viewer's."""
    run = session.get(tables.Run, run_id)
    if run is None or workspaces.role_of(session, who.user.id, run.workspace_id) is None:
        raise NotFound("no such run", hint="it may have been deleted, or belong to a workspace you are not in")
    return Found(
        run,
        session.get_one(tables.Workspace, run.workspace_id),
        session.get(tables.User, run.creator_id) if run.creator_id else None,
        session.get(tables.Repository, run.repository_id) if run.repository_id else None,
    )


@router.get("/")
def overview(
    request: Request,
    who: ViewerDep,
    workspace: str = "",
    kind: str = "",
    status: str = "",
    q: str = "",
    at: int = 1,
) -> Response:
    """All runs of the viewer's workspaces, newest first, filtered by what the form says."""
    mine = tables.Member.user_id == who.user.id
    query = (
        sa.select(tables.Run, tables.Workspace.name, tables.User.name)
        .join(tables.Workspace, tables.Workspace.id == tables.Run.workspace_id)
        .join(tables.Member, tables.Member.workspace_id == tables.Run.workspace_id)
        .outerjoin(tables.User, tables.User.id == tables.Run.creator_id)
        .where(mine)
    )
    for column, wanted in (
        (tables.Workspace.name, workspace),
        (tables.Run.kind, kind),
        (tables.Run.status, status),
    ):
        if wanted:
            query = query.where(column == wanted)
    if words := q.strip()[:200]:
        columns = (tables.Run.name, tables.Run.rollout, tables.Run.model_path, tables.Run.dataset)
        query = query.where(sa.or_(*(column.icontains(words, autoescape=True) for column in columns)))
    with platform_of(request).db.read() as session:
        total = session.scalar(sa.select(sa.func.count()).select_from(query.subquery())) or 0
        pages = max(1, math.ceil(total / PER_PAGE))
        at = min(max(1, at), pages)
        query = query.order_by(tables.Run.created_at.desc(), tables.Run.id).limit(PER_PAGE).offset((at - 1) * PER_PAGE)
        found = [(view(run, _done(run)), name, creator) for run, name, creator in session.execute(query)]
    return page(
        request,
        "overview.html",
        who,
        here="runs",
        workspace=workspace or None,
        found=found,
        total=total,
        at=at,
        pages=pages,
        chosen={"workspace": workspace, "kind": kind, "status": status, "q": q},
        statuses=[known.value for known in RunStatus],
    )


def _done(run: tables.Run) -> int:
    """How many rollouts a run has, as last reported: for lists, without counting."""
    if run.report:
        return int(run.report.get("completed") or 0)
    return int((run.progress or {}).get("completed") or 0)


def _view(session: Session, run: tables.Run) -> RunView:
    return view(run, sum(rollouts.counts(session, run.id).values()))


def _figures(session: Session, run: tables.Run) -> dict[str, Any]:
    """What the live part of a run's page shows."""
    shown = _view(session, run)
    threshold = shown.report.pass_threshold if shown.report else 1.0
    points = sa.select(tables.MetricPoint).where(tables.MetricPoint.run_id == run.id)
    points = points.order_by(tables.MetricPoint.key, tables.MetricPoint.step)
    checkpoints = sa.select(tables.Checkpoint).where(tables.Checkpoint.run_id == run.id)
    return {
        "view": shown,
        "bars": histogram(rollouts.rewards(session, run.id), threshold),
        "curves": curves(list(session.scalars(points))) if run.kind == "training" else [],
        "checkpoints": list(session.scalars(checkpoints.order_by(tables.Checkpoint.step))),
    }


@router.get("/runs/{run_id}")
def run_page(request: Request, who: ViewerDep, run_id: str) -> Response:
    with platform_of(request).db.read() as session:
        found = find_run(session, who, run_id)
        figures = _figures(session, found.run)
        history = runs.events(session, run_id)
    return page(
        request, "run.html", who, here="runs", tab="overview", workspace=found.workspace.name, found=found,
        history=history, **figures,
    )  # fmt: skip


@router.get("/{workspace}/evals/{name}")
def run_by_name(request: Request, who: ViewerDep, workspace: str, name: str) -> Response:
    with platform_of(request).db.read() as session:
        row, _ = workspaces.by_name(session, who.user, workspace)
        return redirect(f"/runs/{runs.find(session, row, 'eval', name).id}")


@router.get("/runs/{run_id}/live")
def live(request: Request, who: ViewerDep, run_id: str) -> Response:
    """The live part alone: what the page asks for when events do not come through."""
    with platform_of(request).db.read() as session:
        return fragment("_figures.html", **_figures(session, find_run(session, who, run_id).run))


@router.get("/runs/{run_id}/events")
async def events(request: Request, who: ViewerDep, run_id: str) -> Response:
    """Server-sent events: the live part whenever it changed, and `end` when the run is over."""
    platform = platform_of(request)
    await run_in_threadpool(_may_see, platform, who, run_id)

    def build() -> tuple[str, bool]:
        return _live_text(platform, run_id)

    headers = {**SECURITY, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    stream = live_pages(request.app).stream(run_id, build)
    return StreamingResponse(stream, media_type="text/event-stream", headers=headers)


def _may_see(platform: Platform, who: Viewer, run_id: str) -> None:
    with platform.db.read() as session:
        find_run(session, who, run_id)


def _live_text(platform: Platform, run_id: str) -> tuple[str, bool]:
    """The live part and whether nothing will change any more."""
    with platform.db.read() as session:
        run = session.get(tables.Run, run_id)
        if run is None:
            return "", True
        return html("_figures.html", **_figures(session, run)), RunStatus(run.status).over


@router.post("/runs/{run_id}/stop")
def stop(request: Request, who: ViewerDep, run_id: str, csrf: Annotated[str, Form()] = "") -> Response:
    check_viewer_form(request, who, csrf)
    with platform_of(request).db.write() as session:
        runs.request_stop(session, find_run(session, who, run_id).run)
    return redirect(f"/runs/{run_id}")


@router.post("/runs/{run_id}/retry")
def retry_run(request: Request, who: ViewerDep, run_id: str, csrf: Annotated[str, Form()] = "") -> Response:
    """Repeat what failed; values that were given with one run only are asked for in the terminal."""
    check_viewer_form(request, who, csrf)
    platform = platform_of(request)
    with platform.db.write() as session:
        retry.retry(session, platform.vault, find_run(session, who, run_id).run, who.user, {})
    return redirect(f"/runs/{run_id}")


@router.get("/runs/{run_id}/config")
def config_page(request: Request, who: ViewerDep, run_id: str) -> Response:
    with platform_of(request).db.read() as session:
        found = find_run(session, who, run_id)
        shown = _view(session, found.run)
        selected = found.run.rows
    return page(
        request, "run_config.html", who, here="runs", tab="config", workspace=found.workspace.name, found=found,
        view=shown, lines=config_lines(found.run.config), selected=row_ranges(selected),
    )  # fmt: skip


def row_ranges(rows: list[Any], most: int = 60) -> str:
    """`0-9, 12, 15-20`: a list of row indices, short."""
    parts: list[list[int]] = []
    for row in rows:
        if parts and row == parts[-1][1] + 1:
            parts[-1][1] = row
        else:
            parts.append([row, row])
    shown = [f"{low}" if low == high else f"{low}-{high}" for low, high in parts[:most]]
    return ", ".join(shown) + (f", … ({len(rows)} rows)" if len(parts) > most else "")


@router.get("/runs/{run_id}/logs")
def log_page(
    request: Request, who: ViewerDep, run_id: str, cursor: str = "", direction: str = "older", level: str = ""
) -> Response:
    wanted = LogSlice(limit=200, direction=direction, cursor=cursor or None)
    level = level if level in LEVELS else "info"
    owner = sa.and_(tables.RunLog.run_id == run_id, tables.RunLog.level.in_(LEVELS[LEVELS.index(level) :]))
    with platform_of(request).db.read() as session:
        found = find_run(session, who, run_id)
        lines = wanted.fetch(session, tables.RunLog, owner)
        shown = _view(session, found.run)
    following = not cursor and not shown.over
    values: dict[str, Any] = {
        "found": found,
        "view": shown,
        "lines": lines,
        "level": level,
        "following": following,
        "cursor": cursor,
    }
    if request.headers.get("hx-request"):
        return fragment("_log.html", **values)
    return page(request, "run_logs.html", who, here="runs", tab="logs", workspace=found.workspace.name, **values)
