"""The datasets of a workspace, and one of them: shown, uploaded from the browser, deleted.

A file goes from the browser to the signed addresses that any client gets, part by part; nothing here holds it whole.
"""

from __future__ import annotations

import math
from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Form, Request, Response
from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session

from osmosis.errors import NotFound, OsmosisError
from osmosis.platform import tables
from osmosis.platform.db import count_of
from osmosis.platform.services import audit, dataset_ingest, datasets, run_lifecycle, upload_plan, workspaces
from osmosis.platform.slow_work import in_turn, slow
from osmosis.records.policy import Action, may
from osmosis.viewer.render import SECURITY

from .session import Viewer, check_viewer_form, form_of, platform_of, viewer
from .templating import PageRoute, page, redirect

router = APIRouter(route_class=PageRoute, include_in_schema=False)
ViewerDep = Annotated[Viewer, Depends(viewer)]

PER_PAGE = 50
PREVIEW_ROWS = 20


def _found(session: Session, who: Viewer, id_: str, action: Action) -> tuple[tables.Dataset, tables.Workspace, str]:
    dataset = session.get(tables.Dataset, id_)
    role = workspaces.role_of(session, who.user.id, dataset.workspace_id) if dataset is not None else None
    if dataset is None or role is None:
        raise NotFound(
            "no such dataset", hint="it may have been deleted, or it belongs to a workspace you are not a member of"
        )
    workspaces.require(role, action)
    return dataset, session.get_one(tables.Workspace, dataset.workspace_id), role


@router.get("/{workspace}/datasets")
def dataset_list(request: Request, who: ViewerDep, workspace: str, at: int = 1) -> Response:
    with platform_of(request).db.read() as session:
        row, role = workspaces.by_name(session, who.user, workspace)
        query = datasets.newest_first(row)
        total = count_of(session, query)
        pages = max(1, math.ceil(total / PER_PAGE))
        at = min(max(1, at), pages)
        found = list(session.scalars(query.limit(PER_PAGE).offset((at - 1) * PER_PAGE)))
        people = datasets.creator_names(session, {dataset.creator_id for dataset in found})
    return page(
        request, "datasets.html", who, here="datasets", workspace=workspace, found=found, people=people, total=total,
        at=at, pages=pages, may_upload=may(role, "data"),
    )  # fmt: skip


@router.get("/datasets/{dataset_id}")
def dataset_page(request: Request, who: ViewerDep, dataset_id: str) -> Response:
    with platform_of(request).db.read() as session:
        dataset, workspace, role = _found(session, who, dataset_id, "read")
        people = datasets.creator_names(session, {dataset.creator_id})
        used = sa.select(tables.Run).where(
            tables.Run.dataset_id == dataset.id, tables.Run.kind.in_(run_lifecycle.SUBMITTED)
        )
        used_by = list(session.scalars(used.order_by(tables.Run.created_at.desc()).limit(20)))
        log = sa.select(tables.DatasetLog).where(tables.DatasetLog.dataset_id == dataset.id)
        lines = list(session.scalars(log.order_by(tables.DatasetLog.id.desc()).limit(50)))
    preview = [row for row in (dataset.preview or [])[:PREVIEW_ROWS] if isinstance(row, dict)]
    columns = list(dict.fromkeys(key for row in preview for key in row))
    return page(
        request, "dataset.html", who, here="datasets", workspace=workspace.name, dataset=dataset,
        creator=people.get(dataset.creator_id), preview=preview, columns=columns, used_by=used_by, lines=lines,
        may_delete=may(role, "delete"),
    )  # fmt: skip


@router.post("/{workspace}/datasets")
def announce(
    request: Request,
    who: ViewerDep,
    workspace: str,
    name: Annotated[str, Form(max_length=200)],
    size: Annotated[int, Form(ge=0)],
    extension: Annotated[str, Form(max_length=20)],
    csrf: Annotated[str, Form()] = "",
) -> Response:
    """For the script of the page: where the file goes. What is wrong is said as JSON, to be shown in its place."""
    try:
        check_viewer_form(request, who, csrf)
        platform = platform_of(request)
        with platform.db.write() as session:
            row, role = workspaces.by_name(session, who.user, workspace)
            workspaces.require(role, "data")
            file = datasets.NewFile(name, size, extension.lower().lstrip("."))
            dataset, upload = datasets.create(session, row, who.user, file, part_bytes=platform.settings.part_bytes)
            audit.note(session, who, "dataset.upload", dataset.name, workspace=row, bytes=size)
            plan = upload_plan.of(platform, upload)
    except OsmosisError as error:
        return _said(error)
    places = plan.presigned_urls or []
    parts = [{"url": part.presigned_url, "size": part.size} for part in places]
    parts = parts or [{"url": plan.presigned_url, "size": size}]
    return JSONResponse({"id": dataset.id, "upload": upload.id, "parts": parts}, headers=SECURITY)


def _said(error: OsmosisError) -> JSONResponse:
    body = {"message": error.message, "hint": error.hint}
    return JSONResponse(body, status_code=error.http_status, headers=SECURITY)


@router.post("/datasets/{dataset_id}/complete")
async def complete(request: Request, who: ViewerDep, dataset_id: str) -> Response:
    """The file is there: check it. The answer is where it is shown, or what is wrong."""
    try:
        form = await form_of(request, who)
        await in_turn("imports", f"dataset {dataset_id}", _complete, request, who, dataset_id, form)
    except OsmosisError as error:
        return _said(error)
    return JSONResponse({"url": f"/datasets/{dataset_id}"}, headers=SECURITY)


def _complete(request: Request, who: Viewer, dataset_id: str, form: dict[str, str]) -> None:
    platform = platform_of(request)
    with platform.db.read() as session:
        _found(session, who, dataset_id, "data")
    etags = {number: form[key] for number in range(1, 10_001) if (key := f"etag{number}") in form}
    dataset_ingest.complete(platform, dataset_id, etags, upload_id=form.get("upload") or None)


@router.post("/datasets/{dataset_id}/delete")
@slow("objects")
def delete(request: Request, who: ViewerDep, dataset_id: str, csrf: Annotated[str, Form()] = "") -> Response:
    check_viewer_form(request, who, csrf)
    platform = platform_of(request)
    with platform.db.write() as session:
        dataset, workspace, _ = _found(session, who, dataset_id, "delete")
        datasets.delete(session, dataset)
        audit.note(session, who, "dataset.delete", dataset.name, workspace=workspace)
        back = f"/{workspace.name}/datasets"
    dataset_ingest.clean(platform, dataset_id)
    return redirect(back)
