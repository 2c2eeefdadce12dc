from typing import Annotated
from urllib.parse import quote

import sqlalchemy as sa
from fastapi import Form, Request, Response
from fastapi.responses import JSONResponse

from osmosis.errors import OsmosisError
from osmosis.platform import tables
from osmosis.platform.background import run_in_turn, slow
from osmosis.platform.datasets import ingest, production, service as datasets
from osmosis.platform.paging import fetch_numbered
from osmosis.platform.runs import lifecycle
from osmosis.platform.web.session import PosterDep, Viewer, ViewerDep, check_viewer_form, read_form
from osmosis.platform.web.templating import page, page_router, redirect
from osmosis.platform.workspaces import audit, service as workspaces
from osmosis.records.api.accounts import may
from osmosis.records.api.datasets import CallJudgement
from osmosis.viewer.page import SECURITY

router = page_router()

PREVIEW_ROWS = 20
CALLS_PER_PAGE = 25


@router.get("/{workspace}/datasets")
def dataset_list(viewer: ViewerDep, workspace: str, at: int = 1) -> Response:
    with viewer.platform.db.read() as session:
        row, role = workspaces.by_name(session, viewer.user, workspace)
        rows, position = fetch_numbered(session, datasets.select_datasets(row), at)
        return page(
            "datasets.html", viewer, here="datasets", workspace=workspace, found=rows, **position,
            may_upload=may(role, "data"),
        )  # fmt: skip


@router.get("/datasets/{dataset_id}")
def dataset_page(viewer: ViewerDep, dataset_id: str) -> Response:
    with viewer.platform.db.read() as session:
        dataset, workspace, role = workspaces.admit(
            session, viewer.user, session.get(tables.Dataset, dataset_id), "dataset"
        )
        creator = dataset.creator
        used = sa.select(tables.Run).filter_by(dataset_id=dataset.id).where(tables.Run.kind.in_(lifecycle.SUBMITTED))
        used_by = list(session.scalars(used.order_by(tables.Run.created_at.desc()).limit(20)))
        log = sa.select(tables.DatasetLog).where(tables.DatasetLog.dataset_id == dataset.id)
        lines = list(session.scalars(log.order_by(tables.DatasetLog.id.desc()).limit(50)))
    preview = [row for row in (dataset.preview or [])[:PREVIEW_ROWS] if isinstance(row, dict)]
    columns = list(dict.fromkeys(key for row in preview for key in row))
    return page(
        "dataset.html", viewer, here="datasets", workspace=workspace.name, dataset=dataset,
        creator=creator, preview=preview, columns=columns, used_by=used_by, lines=lines,
        may_delete=may(role, "delete"),
    )  # fmt: skip


@router.post("/{workspace}/datasets")
def announce(
    request: Request,
    viewer: ViewerDep,
    workspace: str,
    name: Annotated[str, Form(max_length=200)],
    size: Annotated[int, Form(ge=0)],
    extension: Annotated[str, Form(max_length=20)],
    csrf: Annotated[str, Form()] = "",
) -> Response:
    try:
        check_viewer_form(request, viewer, csrf)
        platform = viewer.platform
        with platform.db.write() as session:
            row, _ = workspaces.by_name(session, viewer.user, workspace, "data")
            file = datasets.NewFile(name, size, extension.lower().lstrip("."))
            dataset, upload = datasets.create(session, row, viewer.user, file, part_bytes=platform.settings.part_bytes)
            audit.note(session, viewer, "dataset.upload", dataset.name, workspace=row, bytes=size)
            plan = datasets.build_upload_plan(platform, upload)
    except OsmosisError as error:
        return _error_response(error)
    parts = [{"url": part.presigned_url, "size": part.size} for part in (plan.presigned_urls or [])]
    parts = parts or [{"url": plan.presigned_url, "size": size}]
    return JSONResponse({"id": dataset.id, "upload": upload.id, "parts": parts}, headers=SECURITY)


def _error_response(error: OsmosisError) -> JSONResponse:
    body = {"message": error.message, "hint": error.hint}
    return JSONResponse(body, status_code=error.http_status, headers=SECURITY)


@router.post("/datasets/{dataset_id}/complete")
async def complete(request: Request, viewer: ViewerDep, dataset_id: str) -> Response:
    try:
        form = await read_form(request, viewer)
        await run_in_turn("imports", f"dataset {dataset_id}", _complete, viewer, dataset_id, form)
    except OsmosisError as error:
        return _error_response(error)
    return JSONResponse({"url": f"/datasets/{dataset_id}"}, headers=SECURITY)


def _complete(viewer: Viewer, dataset_id: str, form: dict[str, str]) -> None:
    with viewer.platform.db.read() as session:
        workspaces.admit(session, viewer.user, session.get(tables.Dataset, dataset_id), "dataset", "data")
    etags = {number: form[key] for number in range(1, 10_001) if (key := f"etag{number}") in form}
    ingest.complete(viewer.platform, dataset_id, etags, upload_id=form.get("upload") or None)


@router.post("/datasets/{dataset_id}/delete")
@slow("objects")
def delete(viewer: PosterDep, dataset_id: str) -> Response:
    with viewer.platform.db.write() as session:
        dataset, workspace, _ = workspaces.admit(
            session, viewer.user, session.get(tables.Dataset, dataset_id), "dataset", "delete"
        )
        datasets.delete(session, dataset)
        audit.note(session, viewer, "dataset.delete", dataset.name, workspace=workspace)
        back = f"/{workspace.name}/datasets"
    ingest.clean(viewer.platform, dataset_id)
    return redirect(back)


@router.get("/{workspace}/production")
def call_list(viewer: ViewerDep, workspace: str, at: int = 1, label: str = "", dataset: str = "production") -> Response:
    with viewer.platform.db.read() as session:
        row, role = workspaces.by_name(session, viewer.user, workspace)
        calls, position = fetch_numbered(session, production.select_calls(row, label), at, CALLS_PER_PAGE)
    return page(
        "production.html", viewer, here="production", workspace=workspace, calls=calls, label=label,
        dataset=dataset, url=viewer.platform.settings.url, may_label=may(role, "data"), **position,
    )  # fmt: skip


@router.post("/{workspace}/production/{call_id}")
@slow("objects")
def judge_call(
    viewer: PosterDep,
    workspace: str,
    call_id: str,
    label: Annotated[str, Form(max_length=10)] = "",
    dataset: Annotated[str, Form(max_length=200)] = "production",
    ground_truth: Annotated[str, Form(max_length=20_000)] = "",
) -> Response:
    with viewer.platform.db.read() as session:
        row, _ = workspaces.by_name(session, viewer.user, workspace, "data")
    judgement = CallJudgement(label="up" if label == "up" else "down", ground_truth=ground_truth.strip() or None)
    judgement.dataset = "" if judgement.label == "up" else dataset
    production.judge(viewer.platform, row, viewer, call_id, judgement)
    return redirect(f"/{row.name}/production?dataset={quote(dataset)}#{call_id}")
