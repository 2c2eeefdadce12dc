"""`/workers`: the machines that run jobs: what they are, what they run; drained and removed by who may direct them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Form, Request, Response

from osmosis.errors import OsmosisError
from osmosis.platform.services import worker_list
from osmosis.records.contract.worker_bodies import WorkerList
from osmosis.viewer.render import SECURITY

from .session import Viewer, check_viewer_form, platform_of, viewer
from .templating import PageRoute, page, redirect

router = APIRouter(route_class=PageRoute, include_in_schema=False)
ViewerDep = Annotated[Viewer, Depends(viewer)]
Csrf = Annotated[str, Form()]


@router.get("/workers")
def workers(request: Request, who: ViewerDep) -> Response:
    return _workers(request, who)


def _workers(request: Request, who: Viewer, problem: OsmosisError | None = None) -> Response:
    with platform_of(request).db.read() as session:
        found = worker_list.rows(session, who.user)
        shown = worker_list.shown(session, who.user)
        directed = {worker.id for worker in shown if worker_list.may_direct(session, who.user, worker)}
    return page(
        request, "workers.html", who, here="workers", found=found, directed=directed, problem=problem,
        status=problem.http_status if problem else 200,
    )  # fmt: skip


@router.get("/workers.json")
def as_json(request: Request, who: ViewerDep) -> Response:
    """The record of the page."""
    with platform_of(request).db.read() as session:
        body = WorkerList(workers=worker_list.rows(session, who.user))
    return Response(body.model_dump_json(), media_type="application/json", headers=SECURITY)


@router.post("/workers/{worker_id}/drain")
def drain(request: Request, who: ViewerDep, worker_id: str, csrf: Csrf = "") -> Response:
    check_viewer_form(request, who, csrf)
    try:
        with platform_of(request).db.write() as session:
            worker_list.drain(session, who, worker_list.to_direct(session, who.user, worker_id))
    except OsmosisError as problem:
        return _workers(request, who, problem)
    return redirect("/workers")


@router.post("/workers/{worker_id}/remove")
def remove(request: Request, who: ViewerDep, worker_id: str, csrf: Csrf = "") -> Response:
    check_viewer_form(request, who, csrf)
    platform = platform_of(request)
    try:
        with platform.db.write() as session:
            worker = worker_list.to_direct(session, who.user, worker_id)
            worker_list.remove(platform, session, who, worker)
    except OsmosisError as problem:
        return _workers(request, who, problem)
    return redirect("/workers")
