"""Runs: the overview, and the viewer's pages of one run, live while it is in progress."""

from __future__ import annotations

import math
from typing import Annotated, Any
from urllib.parse import quote

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Form, Request, Response
from fastapi.concurrency import run_in_threadpool

from osmosis.platform import Platform, tables
from osmosis.platform.db import count_of
from osmosis.platform.services import (
    audit,
    judgements,
    run_lifecycle,
    run_marks,
    run_removal,
    run_results,
    run_retry,
    workspaces,
)
from osmosis.platform.slow_work import apart, slow
from osmosis.platform.viewing.run_source import DatabaseLibrary, DatabaseRun, find_run, state_of
from osmosis.records.contract.run_bodies import RetryRun
from osmosis.records.rollout import Rollout
from osmosis.records.run_status import RunStatus
from osmosis.viewer import site
from osmosis.viewer.annotating import after, annotation_of
from osmosis.viewer.asked import Asked
from osmosis.viewer.code_diff import CodeChanges
from osmosis.viewer.compare_page import code_page, two_of
from osmosis.viewer.marking import change_of
from osmosis.viewer.view import Document, View

from .session import Viewer, check_viewer_form, form_of, platform_of, viewer
from .templating import PageRoute, document, framed, html, redirect, streamed

router = APIRouter(route_class=PageRoute, include_in_schema=False)
ViewerDep = Annotated[Viewer, Depends(viewer)]

PER_PAGE = 25
CODE_CHANGES = CodeChanges()

CHOICES = ("workspace", "kind", "status", "tag", "q")


@router.get("/")
def overview(request: Request, who: ViewerDep, at: int = 1) -> Response:
    """All runs of the viewer's workspaces, pinned ones first, then the newest; filtered by what the form says."""
    asked = Asked(request.query_params.multi_items())
    view = _overview(platform_of(request), who, asked, at)
    return framed(request, view, who, here="runs", workspace=asked.text("workspace") or None)


@router.get("/status/runs")
def overview_events(request: Request, who: ViewerDep, at: int = 1) -> Response:
    """Server-sent events of the list: its table whenever it changed, and `end` when no run of it is in progress."""
    platform, asked = platform_of(request), Asked(request.query_params.multi_items())

    def build() -> tuple[str, bool]:
        view = _overview(platform, who, asked, at)
        return html(view.changing), view.final

    return streamed(request, f"{who.user.id}{asked.link()}", build)


def _overview(platform: Platform, who: Viewer, asked: Asked, at: int) -> View:
    workspace, kind, status, tag, q = (asked.text(name) for name in CHOICES)
    with platform.db.read() as session:
        names = {row.id: row.name for row, _, _ in workspaces.of_user(session, who.user)}
        wanted = [
            tables.Run.workspace_id.in_([id_ for id_, name in names.items() if workspace in ("", name)]),
            tables.Run.kind.in_(run_lifecycle.SUBMITTED),
            *(column == value for column, value in ((tables.Run.kind, kind), (tables.Run.status, status)) if value),
        ]
        if tag := tag[:100]:
            wanted.append(run_marks.tagged(tag))
        if words := q[:200]:
            columns = (tables.Run.name, tables.Run.rollout, tables.Run.model_path, tables.Run.dataset)
            wanted.append(sa.or_(*(column.icontains(words, autoescape=True) for column in columns)))
        total = count_of(session, sa.select(tables.Run).where(*wanted))
        last = max(1, math.ceil(total / PER_PAGE))
        at = min(max(1, at), last)
        newest = (tables.Run.pinned.desc(), tables.Run.created_at.desc(), tables.Run.id)
        # Ids are sorted, not whole rows: those carry their reports.
        chosen = sa.select(tables.Run.id).where(*wanted).order_by(*newest).limit(PER_PAGE).offset((at - 1) * PER_PAGE)
        query = (
            sa.select(tables.Run, tables.User.name)
            .outerjoin(tables.User, tables.User.id == tables.Run.creator_id)
            .where(tables.Run.id.in_(chosen))
            .order_by(*newest)
        )
        found = [_listed(run, names[run.workspace_id], creator) for run, creator in session.execute(query)]
    going = any(not one["state"].over for one in found)
    values = {
        "found": found,
        "total": total,
        "at": at,
        "pages": last,
        "chosen": {"workspace": workspace, "kind": kind, "status": status, "tag": tag, "q": q},
        "statuses": [known.value for known in RunStatus],
        "asked": asked,
        "going": going,
    }
    return View("overview.html", values, live="_overview.html", final=not going)


def _listed(run: tables.Run, workspace: str, creator: str | None) -> dict[str, Any]:
    """A run in a list: how far it is as last reported, without counting."""
    report = run_results.report_of(run)
    done = report.completed if report else (run.progress or tables.StoredProgress()).get("completed", 0)
    state = state_of(run, done, report)
    return {"run": run, "state": state, "primary": report.primary if report else None, "workspace": workspace,
            "creator": creator, "marks": run_marks.of(run)}  # fmt: skip


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


@router.get("/runs/{run_id}/events")
async def events(request: Request, who: ViewerDep, run_id: str) -> Response:
    """Server-sent events: what changes on a page of the run, whenever it did, and `end` when nothing will any more."""
    platform, asked = platform_of(request), Asked(request.query_params.multi_items())
    await run_in_threadpool(_check_changing, platform, who, run_id, asked)

    def build() -> tuple[str, bool]:
        return _live_text(platform, run_id, asked)

    return streamed(request, f"{run_id}{asked.link()}", build)


def _check_changing(platform: Platform, who: Viewer, run_id: str, asked: Asked) -> None:
    """NotFound before a stream begins, where they may not see the run or the page has nothing that changes."""
    with platform.db.read() as session:
        site.changing(find_run(session, platform, who, run_id), asked)


def _live_text(platform: Platform, run_id: str, asked: Asked) -> tuple[str, bool]:
    """What changes on the page, and whether that is final."""
    with platform.db.read() as session:
        run = session.get(tables.Run, run_id)
        if run is None:
            return "", True
        found = DatabaseRun(session, platform, run, session.get_one(tables.Workspace, run.workspace_id))
        view, final = site.changing(found, asked)
        return html(view), final


@router.post("/runs/{run_id}/stop")
def stop(request: Request, who: ViewerDep, run_id: str, csrf: Annotated[str, Form()] = "") -> Response:
    check_viewer_form(request, who, csrf)
    platform = platform_of(request)
    with platform.db.write() as session:
        found = find_run(session, platform, who, run_id, "run")
        run_lifecycle.request_stop(session, found.run)
        audit.note(session, who, "run.stop", found.run.name, workspace=found.workspace)
    return redirect(f"/runs/{run_id}")


@router.post("/runs/{run_id}/retry")
def retry_run(request: Request, who: ViewerDep, run_id: str, csrf: Annotated[str, Form()] = "") -> Response:
    """Repeat what failed; values that were given with one run only are asked for in the terminal."""
    check_viewer_form(request, who, csrf)
    platform = platform_of(request)
    with platform.db.write() as session:
        found = find_run(session, platform, who, run_id, "run")
        run_retry.retry(session, platform.vault, found.run, who.user, RetryRun())
        audit.note(session, who, "run.retry", found.run.name, workspace=found.workspace)
    return redirect(f"/runs/{run_id}")


@router.post("/runs/{run_id}/delete")
@slow("objects")
def delete(request: Request, who: ViewerDep, run_id: str, csrf: Annotated[str, Form()] = "") -> Response:
    check_viewer_form(request, who, csrf)
    platform = platform_of(request)
    with platform.db.write() as session:
        found = find_run(session, platform, who, run_id, "delete")
        leftovers = run_removal.remove(session, found.run)
        audit.note(session, who, "run.delete", found.run.name, workspace=found.workspace, kind=found.run.kind)
        back = f"/?workspace={quote(found.workspace.name, safe='')}"
    run_removal.clean(platform, leftovers)
    return redirect(back)


@router.post("/runs/{run_id}/marks")
async def mark(request: Request, who: ViewerDep, run_id: str) -> Response:
    """Keeps what is written on a run, and its name."""
    form = await form_of(request, who)
    platform = platform_of(request)

    def keep() -> None:
        with platform.db.write() as session:
            found = find_run(session, platform, who, run_id, "run")
            name, change = found.run.name, change_of(form)
            run_lifecycle.mark(session, found.run, change)
            renamed = change.name if change.name != name else None
            audit.note(session, who, "run.mark", name, workspace=found.workspace, renamed=renamed)

    await run_in_threadpool(keep)
    return redirect(f"/runs/{run_id}")


@router.get("/compare")
@router.get("/compare.json")
@router.get("/history")
@router.get("/history.json")
def of_several(request: Request, who: ViewerDep) -> Response:
    """Runs of the viewer's workspaces beside each other, and one after the other."""
    platform = platform_of(request)
    with platform.db.read() as session:
        library = DatabaseLibrary(session, platform, who)
        answer = site.of_library(library, request.url.path, Asked(request.query_params.multi_items()))
    return document(answer) if isinstance(answer, Document) else framed(request, answer, who, here="runs")


@router.get("/compare/code")
@router.get("/compare/code.json")
async def code_of_two(request: Request, who: ViewerDep) -> Response:
    """What changed in the code between two runs: git is asked, in a thread for that."""
    return await apart("checks", _code_of_two, request, who)


def _code_of_two(request: Request, who: Viewer) -> Response:
    platform, asked = platform_of(request), Asked(request.query_params.multi_items())
    with platform.db.read() as session:
        pair = DatabaseLibrary(session, platform, who).code(*two_of(asked))
    found = site.twin_of(code_page(CODE_CHANGES.of(pair), pair.names, asked), request.url.path)
    return document(found) if isinstance(found, Document) else framed(request, found, who, here="runs")


@router.get("/runs/{run_id}")
def run_page(request: Request, who: ViewerDep, run_id: str) -> Response:
    return _answer(request, who, run_id, "")


@router.post("/runs/{run_id}/rollouts/{row}/{attempt}/annotate")
async def annotate(request: Request, who: ViewerDep, run_id: str, row: int, attempt: int) -> Response:
    """Keeps what a person says about a rollout."""
    form = await form_of(request, who)
    asked = Asked(request.query_params.multi_items())
    platform = platform_of(request)

    def keep() -> str:
        with platform.db.write() as session:
            found = find_run(session, platform, who, run_id, "run")
            record = Rollout.model_validate_json(found.rollout(row, attempt, asked.number("step") or 0))
            onward = after(found, record, asked)  # where the next one is, before this one leaves the filter
            judgements.add(session, run_id, annotation_of(form, record, who.user.name), who.user.id)
            return onward

    return redirect(await run_in_threadpool(keep))


@router.get("/runs/{run_id}/{path:path}")
def part_of_run(request: Request, who: ViewerDep, run_id: str, path: str) -> Response:
    """Every page below a run, as `viewer.site` knows them; `.json` behind it is its record."""
    return _answer(request, who, run_id, path)


def _answer(request: Request, who: Viewer, run_id: str, path: str) -> Response:
    asked = Asked(request.query_params.multi_items())
    platform = platform_of(request)
    with platform.db.read() as session:
        if not path and run_id.endswith(".json"):
            run_id, path = run_id.removesuffix(".json"), "index.json"
        found = find_run(session, platform, who, run_id)
        answer = site.answer(found, path, asked)
        if isinstance(answer, Document):
            return document(answer)
    return framed(request, answer, who, here="runs", workspace=found.workspace.name)
