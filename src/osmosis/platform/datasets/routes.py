from typing import Annotated

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse

from osmosis.errors import Conflict, NotFound
from osmosis.platform import Platform, tables
from osmosis.platform.auth.dependencies import PlatformDep, Scope, ScopeDep, may
from osmosis.platform.background import run_in_turn, slow
from osmosis.platform.datasets import ingest, service, service as datasets
from osmosis.platform.http.json_route import JsonRoute
from osmosis.platform.objects.parts import SIGNED, Parts, object_url, receive_part, upload_key
from osmosis.platform.paging import LogSliceDep, PageDep
from osmosis.platform.workspaces import audit
from osmosis.records.api.body import LogPage, Nothing
from osmosis.records.api.datasets import (
    AbortDataset,
    CompleteDataset,
    CreatedDataset,
    DatasetDownload,
    DatasetEntry,
    DatasetPage,
    NewDataset,
)

router = APIRouter(route_class=JsonRoute)
DataDep = Annotated[Scope, may("data")]


@router.post("/api/cli/datasets")
def create(body: NewDataset, platform: PlatformDep, scope: DataDep) -> CreatedDataset:
    file = datasets.NewFile(body.file_name, body.file_size, body.extension.lower().lstrip("."))
    with platform.db.write() as session:
        part_bytes = platform.settings.part_bytes
        dataset, upload = datasets.create(
            session, scope.workspace, scope.user, file, part_bytes=part_bytes, overwrite_id=body.overwrite_dataset_id
        )
        audit.note(session, scope, "dataset.upload", dataset.name, workspace=scope.workspace, bytes=body.file_size)
        plan = service.build_upload_plan(platform, upload)
        return datasets.build_entry(CreatedDataset, platform.settings, dataset, upload=plan)


@router.put("/api/objects/uploads/{upload_id}/{number}", dependencies=SIGNED)
async def put_part(upload_id: str, number: int, request: Request, platform: PlatformDep) -> Response:
    upload = await run_in_threadpool(_find_upload, platform, upload_id)
    if upload is None or not 1 <= number <= upload.parts:
        raise NotFound("this upload no longer exists", hint="upload the file again")
    if upload.status != "open":
        raise Conflict(f"this upload is {upload.status}", hint="upload the file again")
    parts = Parts(upload.size, upload.part_size)
    return await receive_part(platform, upload_key(upload_id), parts, number, request.stream())


def _find_upload(platform: Platform, upload_id: str) -> tables.Upload | None:
    with platform.db.read() as session:
        return session.get(tables.Upload, upload_id)


@router.post("/api/cli/datasets/{dataset_id}/complete")
async def complete(dataset_id: str, body: CompleteDataset, platform: PlatformDep, scope: DataDep) -> DatasetEntry:
    key = f"datasets of {scope.workspace.id}"
    return await run_in_turn("imports", key, _complete, dataset_id, body, platform, scope)


def _complete(dataset_id: str, body: CompleteDataset, platform: Platform, scope: Scope) -> DatasetEntry:
    with platform.db.read() as session:
        dataset = datasets.find(session, scope.workspace, dataset_id)
    etags = {part.PartNumber: part.ETag for part in body.parts or ()}
    ingest.complete(platform, dataset.id, etags, upload_id=body.upload_id)
    with platform.db.read() as session:
        dataset = session.get_one(tables.Dataset, dataset.id)
        return datasets.build_entry(DatasetEntry, platform.settings, dataset)


@router.post("/api/cli/datasets/{dataset_id}/abort")
@slow("objects")
def abort(dataset_id: str, platform: PlatformDep, scope: DataDep, body: AbortDataset | None = None) -> Nothing:
    named = body.upload_id if body else None
    with platform.db.write() as session:
        upload_id = datasets.abort(session, datasets.find(session, scope.workspace, dataset_id), named)
    if upload_id:
        platform.objects.delete(upload_key(upload_id))
    return Nothing()


@router.get("/api/cli/datasets")
def list_datasets(platform: PlatformDep, scope: ScopeDep, page: PageDep) -> DatasetPage:
    with platform.db.read() as session:
        rows, total = page.fetch(session, datasets.select_datasets(scope.workspace))
        bodies = [datasets.build_entry(DatasetEntry, platform.settings, row) for row in rows]
    return DatasetPage(datasets=bodies, **page.place(len(bodies), total))


@router.get("/api/cli/datasets/{name}")
def get_dataset(name: str, platform: PlatformDep, scope: ScopeDep) -> DatasetEntry:
    with platform.db.read() as session:
        dataset = datasets.find(session, scope.workspace, name)
        return datasets.build_entry(DatasetEntry, platform.settings, dataset)


@router.delete("/api/cli/datasets/{name}", status_code=204)
@slow("objects")
def delete(name: str, platform: PlatformDep, scope: ScopeDep) -> Response:
    with platform.db.write() as session:
        dataset = datasets.find(session, scope.workspace, name)
        datasets.delete(session, dataset)
        audit.note(session, scope, "dataset.delete", dataset.name, workspace=scope.workspace)
    ingest.clean(platform, dataset.id)
    return Response(status_code=204)


@router.get("/api/cli/datasets/{name}/download")
def download(name: str, platform: PlatformDep, scope: ScopeDep) -> DatasetDownload:
    with platform.db.read() as session:
        dataset = datasets.find(session, scope.workspace, name)
    if dataset.path is None:
        raise Conflict(f"dataset {dataset.name!r} is {dataset.status}, so it has no file to download")
    return DatasetDownload(
        presigned_url=object_url(platform, dataset.path, f"datasets/{dataset.id}", method="GET"),
        expires_in=platform.settings.url_lifetime_s,
        file_name=f"{dataset.name}.{dataset.format}",
    )


@router.get("/api/objects/datasets/{dataset_id}", dependencies=SIGNED)
@slow("objects")
def get_object(dataset_id: str, platform: PlatformDep) -> FileResponse:
    with platform.db.read() as session:
        dataset = session.get(tables.Dataset, dataset_id)
    if dataset is None or dataset.path is None:
        raise NotFound("this dataset was deleted")
    filename = f"{dataset.name}.{dataset.format}"
    return FileResponse(platform.objects.fetch(dataset.path), media_type="application/octet-stream", filename=filename)


@router.get("/api/cli/datasets/{name}/logs")
def logs(name: str, platform: PlatformDep, scope: ScopeDep, page: LogSliceDep) -> LogPage:
    with platform.db.read() as session:
        dataset = datasets.find(session, scope.workspace, name)
        return page.fetch(session, tables.DatasetLog, tables.DatasetLog.dataset_id == dataset.id)
