"""`/api/cli/datasets` and the signed object addresses their files travel by."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse
from pydantic import BaseModel, Field

from osmosis.errors import Conflict, NotFound

from .. import ingest, objects, tables
from ..context import Platform
from ..services import datasets
from ..services.pages import LogPage, Page
from .deps import PlatformDep, ScopeDep

router = APIRouter()
Limit = Annotated[int, Query()]


class NewDataset(BaseModel):
    file_name: str
    file_size: int
    extension: str
    overwrite_dataset_id: str | None = None


class Part(BaseModel):
    PartNumber: int
    ETag: str


class Complete(BaseModel):
    file_extension: str | None = None
    parts: list[Part] = Field(default_factory=list)


def _body(platform: Platform, session: Any, dataset: tables.Dataset) -> dict[str, Any]:
    creator = session.get(tables.User, dataset.creator_id) if dataset.creator_id else None
    return datasets.body(platform.settings, dataset, creator.name if creator else None)


@router.post("/api/cli/datasets")
def create(body: NewDataset, platform: PlatformDep, scope: ScopeDep) -> dict[str, Any]:
    file = datasets.NewFile(body.file_name, body.file_size, body.extension.lower().lstrip("."))
    with platform.db.write() as session:
        dataset, upload = datasets.create(
            session,
            scope.workspace,
            scope.user,
            file,
            part_bytes=platform.settings.part_bytes,
            overwrite_id=body.overwrite_dataset_id,
        )
        return {**_body(platform, session, dataset), "upload": _upload_body(platform, upload)}


def _upload_body(platform: Platform, upload: tables.Upload) -> dict[str, Any]:
    """How to send the file. `s3_key` and `upload_id` are read by older clients only."""
    body: dict[str, Any] = {
        "expires_in": platform.settings.url_lifetime_s,
        "s3_key": f"uploads/{upload.id}",
        "upload_id": upload.id,
    }
    if not upload.part_size:
        url = objects.sign_url(platform, f"uploads/{upload.id}/1", method="PUT")
        return {**body, "method": "simple", "presigned_url": url, "upload_headers": {}}
    parts = []
    for number in range(1, upload.parts + 1):
        url = objects.sign_url(platform, f"uploads/{upload.id}/{number}", method="PUT")
        parts.append({"part_number": number, "presigned_url": url, "size": _part_bytes(upload, number)})
    return {
        **body,
        "method": "multipart",
        "part_size": upload.part_size,
        "total_parts": upload.parts,
        "presigned_urls": parts,
    }


def _part_bytes(upload: tables.Upload, number: int) -> int:
    """What a part may weigh; a simple upload is one part."""
    if not upload.part_size:
        return upload.size
    return min(upload.part_size, upload.size - (number - 1) * upload.part_size)


@router.put("/api/objects/uploads/{upload_id}/{number}")
async def put_part(
    upload_id: str, number: int, expires: int, signature: str, request: Request, platform: PlatformDep
) -> Response:
    objects.check_url(platform, f"uploads/{upload_id}/{number}", method="PUT", expires=expires, signature=signature)
    upload = await run_in_threadpool(_find_upload, platform, upload_id)
    if upload is None or not 1 <= number <= upload.parts:
        raise NotFound("there is no such upload any more", hint="upload the file again")
    if upload.status != "open":
        raise Conflict(f"this upload is {upload.status}", hint="upload the file again")
    folder = objects.upload_dir(platform, upload_id)
    etag = await objects.store_part(folder, number, request.stream(), limit=_part_bytes(upload, number))
    return Response(status_code=200, headers={"ETag": etag})


def _find_upload(platform: Platform, upload_id: str) -> tables.Upload | None:
    with platform.db.read() as session:
        return session.get(tables.Upload, upload_id)


@router.post("/api/cli/datasets/{dataset_id}/complete")
def complete(dataset_id: str, body: Complete, platform: PlatformDep, scope: ScopeDep) -> dict[str, Any]:
    with platform.db.read() as session:
        found = datasets.find(session, scope.workspace, dataset_id)
    ingest.complete(platform, found.id, {part.PartNumber: part.ETag for part in body.parts})
    with platform.db.read() as session:
        return _body(platform, session, session.get_one(tables.Dataset, found.id))


@router.post("/api/cli/datasets/{dataset_id}/abort")
def abort(dataset_id: str, platform: PlatformDep, scope: ScopeDep) -> dict[str, Any]:
    with platform.db.write() as session:
        upload_id = datasets.abort(session, datasets.find(session, scope.workspace, dataset_id))
    if upload_id:
        objects.remove_tree(objects.upload_dir(platform, upload_id))
    return {}


@router.get("/api/cli/datasets")
def list_datasets(platform: PlatformDep, scope: ScopeDep, limit: Limit = 50, offset: Limit = 0) -> dict[str, Any]:
    page = Page(limit, offset)
    with platform.db.read() as session:
        rows, total = page.fetch(session, datasets.newest_first(scope.workspace))
        users = datasets.creator_names(session, {row.creator_id for row in rows})
    shown = []
    for row in rows:
        creator = users.get(row.creator_id)
        shown.append(datasets.body(platform.settings, row, creator.name if creator else None))
    return page.wrap("datasets", shown, total)


@router.get("/api/cli/datasets/{name}")
def get_dataset(name: str, platform: PlatformDep, scope: ScopeDep) -> dict[str, Any]:
    with platform.db.read() as session:
        return _body(platform, session, datasets.find(session, scope.workspace, name))


@router.delete("/api/cli/datasets/{name}", status_code=204)
def delete(name: str, platform: PlatformDep, scope: ScopeDep) -> Response:
    with platform.db.write() as session:
        dataset = datasets.find(session, scope.workspace, name)
        datasets.delete(session, dataset)
    ingest.clean(platform, dataset.id)
    return Response(status_code=204)


@router.get("/api/cli/datasets/{name}/download")
def download(name: str, platform: PlatformDep, scope: ScopeDep) -> dict[str, Any]:
    with platform.db.read() as session:
        dataset = datasets.find(session, scope.workspace, name)
    if dataset.path is None:
        raise Conflict(f"dataset {dataset.name!r} is {dataset.status}: there is no file to download")
    url = objects.sign_url(platform, f"datasets/{dataset.id}", method="GET")
    return {
        "presigned_url": url,
        "expires_in": platform.settings.url_lifetime_s,
        "file_name": f"{dataset.name}.{dataset.format}",
    }


@router.get("/api/objects/datasets/{dataset_id}")
def get_object(dataset_id: str, expires: int, signature: str, platform: PlatformDep) -> FileResponse:
    objects.check_url(platform, f"datasets/{dataset_id}", method="GET", expires=expires, signature=signature)
    with platform.db.read() as session:
        dataset = session.get(tables.Dataset, dataset_id)
    if dataset is None or dataset.path is None:
        raise NotFound("this dataset is gone")
    return FileResponse(
        platform.settings.located(dataset.path),
        media_type="application/octet-stream",
        filename=f"{dataset.name}.{dataset.format}",
    )


@router.get("/api/cli/datasets/{name}/logs")
def logs(
    name: str,
    platform: PlatformDep,
    scope: ScopeDep,
    limit: Limit = 50,
    direction: str = "older",
    cursor: str | None = None,
) -> dict[str, Any]:
    page = LogPage(limit, direction, cursor)
    with platform.db.read() as session:
        dataset = datasets.find(session, scope.workspace, name)
        return page.fetch(session, tables.DatasetLog, tables.DatasetLog.dataset_id == dataset.id)
