"""Runs: the overview, and the viewer's pages of one run, live while it is in progress."""

from __future__ import annotations

import math
from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Form, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from osmosis.platform import Platform, tables
from osmosis.platform.services import run_lifecycle, run_results, run_retry, workspaces
from osmosis.platform.services.paging import count_of
from osmosis.records.run import RunStatus
from osmosis.viewer import pages
from osmosis.viewer.pages import View

from .live import live_pages
from .run_source import DatabaseRun, find_run, state_of
from .session import Viewer, check_viewer_form, platform_of, viewer
from .templating import SECURITY, PageRoute, fragment, framed, html, page, redirect

router = APIRouter(route_class=PageRoute, include_in_schema=False)
ViewerDep = Annotated[Viewer, Depends(viewer)]

PER_PAGE = 25


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
    with platform_of(request).db.read() as session:
        names = {row.id: row.name for row, _, _ in workspaces.of_user(session, who.user)}
        wanted = [
            tables.Run.workspace_id.in_([id_ for id_, name in names.items() if workspace in ("", name)]),
            *(column == value for column, value in ((tables.Run.kind, kind), (tables.Run.status, status)) if value),
        ]
        if words := q.strip()[:200]:
            columns = (tables.Run.name, tables.Run.rollout, tables.Run.model_path, tables.Run.dataset)
            wanted.append(sa.or_(*(column.icontains(words, autoescape=True) for column in columns)))
        total = count_of(session, sa.select(tables.Run).where(*wanted))
        last = max(1, math.ceil(total / PER_PAGE))
        at = min(max(1, at), last)
        newest = (tables.Run.created_at.desc(), tables.Run.id)
        # Ids are sorted, not whole rows: those carry their reports.
        chosen = sa.select(tables.Run.id).where(*wanted).order_by(*newest).limit(PER_PAGE).offset((at - 1) * PER_PAGE)
        query = (
            sa.select(tables.Run, tables.User.name)
            .outerjoin(tables.User, tables.User.id == tables.Run.creator_id)
            .where(tables.Run.id.in_(chosen))
            .order_by(*newest)
        )
        found = [_listed(run, names[run.workspace_id], creator) for run, creator in session.execute(query)]
    return page(
        request,
        "overview.html",
        who,
        here="runs",
        workspace=workspace or None,
        found=found,
        total=total,
        at=at,
        pages=last,
        chosen={"workspace": workspace, "kind": kind, "status": status, "q": q},
        statuses=[known.value for known in RunStatus],
    )


def _listed(run: tables.Run, workspace: str, creator: str | None) -> dict[str, object]:
    """A run in a list: how far it is as last reported, without counting."""
    report = run_results.report_of(run)
    done = report.completed if report else (run.progress or tables.StoredProgress()).get("completed", 0)
    state = state_of(run, done, report)
    return {"run": run, "state": state, "primary": report.primary if report else None, "workspace": workspace,
            "creator": creator}  # fmt: skip


def _page(request: Request, who: Viewer, found: DatabaseRun, view: View) -> Response:
    return framed(request, view, who, here="runs", workspace=found.workspace.name)


@router.get("/runs/{run_id}")
def run_page(request: Request, who: ViewerDep, run_id: str) -> Response:
    with platform_of(request).db.read() as session:
        found = find_run(session, who, run_id)
        view = pages.run_page(found)
    return _page(request, who, found, view)


@router.get("/{workspace}/evals/{name}")
def run_by_name(request: Request, who: ViewerDep, workspace: str, name: str) -> Response:
    return _by_name(request, who, workspace, "eval", name)


@router.get("/{workspace}/trainings/{name}")
def training_by_name(request: Request, who: ViewerDep, workspace: str, name: str) -> Response:
    return _by_name(request, who, workspace, "training", name)


def _by_name(request: Request, who: Viewer, workspace: str, kind: str, name: str) -> Response:
    with platform_of(request).db.read() as session:
        row, _ = workspaces.by_name(session, who.user, workspace)
        return redirect(f"/runs/{run_lifecycle.find(session, row, kind, name).id}")


@router.get("/runs/{run_id}/live")
def live(request: Request, who: ViewerDep, run_id: str) -> Response:
    """The live part alone: what the page asks for when events do not come through."""
    with platform_of(request).db.read() as session:
        return fragment(pages.live_part(find_run(session, who, run_id)))


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
        found = DatabaseRun(session, run, session.get_one(tables.Workspace, run.workspace_id))
        return html(pages.live_part(found)), RunStatus(run.status).over


@router.post("/runs/{run_id}/stop")
def stop(request: Request, who: ViewerDep, run_id: str, csrf: Annotated[str, Form()] = "") -> Response:
    check_viewer_form(request, who, csrf)
    with platform_of(request).db.write() as session:
        run_lifecycle.request_stop(session, find_run(session, who, run_id).run)
    return redirect(f"/runs/{run_id}")


@router.post("/runs/{run_id}/retry")
def retry_run(request: Request, who: ViewerDep, run_id: str, csrf: Annotated[str, Form()] = "") -> Response:
    """Repeat what failed; values that were given with one run only are asked for in the terminal."""
    check_viewer_form(request, who, csrf)
    platform = platform_of(request)
    with platform.db.write() as session:
        run_retry.retry(session, platform.vault, find_run(session, who, run_id).run, who.user, {})
    return redirect(f"/runs/{run_id}")


@router.get("/runs/{run_id}/config")
def config_page(request: Request, who: ViewerDep, run_id: str) -> Response:
    with platform_of(request).db.read() as session:
        found = find_run(session, who, run_id)
        view = pages.config_page(found)
    return _page(request, who, found, view)


@router.get("/runs/{run_id}/logs")
def log_page(
    request: Request, who: ViewerDep, run_id: str, cursor: str = "", direction: str = "older", level: str = ""
) -> Response:
    lines_alone = bool(request.headers.get("hx-request"))
    with platform_of(request).db.read() as session:
        found = find_run(session, who, run_id)
        view = pages.log_page(found, level=level, cursor=cursor, newer=direction == "newer", fragment=lines_alone)
    return fragment(view) if lines_alone else _page(request, who, found, view)


@router.get("/runs/{run_id}/rollouts")
def rollout_list(
    request: Request,
    who: ViewerDep,
    run_id: str,
    outcome: str = "",
    category: str = "",
    row: str = "",
    order: str = "row",
    step: str = "",
    at: int = 1,
) -> Response:
    with platform_of(request).db.read() as session:
        found = find_run(session, who, run_id)
        view = pages.rollouts_page(found, outcome=outcome, category=category, row=row, order=order, step=step, at=at)
    return _page(request, who, found, view)


@router.get("/runs/{run_id}/rollouts/{row_index}/{attempt}")
def rollout_page(
    request: Request, who: ViewerDep, run_id: str, row_index: int, attempt: int, step: int = 0, raw: bool = False
) -> Response:
    """One rollout; `?step=N` is that of a training step, `?raw=true` its record as JSON."""
    with platform_of(request).db.read() as session:
        found = find_run(session, who, run_id)
        if raw:
            headers = {**SECURITY, "Cache-Control": "no-store"}
            return Response(found.rollout(row_index, attempt, step), media_type="application/json", headers=headers)
        view = pages.rollout_page(found, row_index, attempt, step)
    return _page(request, who, found, view)
