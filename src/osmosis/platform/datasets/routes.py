"""Routes of datasets, and of calls in production, which applications send and label with scope `inference`."""

import gzip
import importlib
import zlib
from base64 import b64decode
from io import BytesIO
from typing import Annotated

import orjson
from fastapi import APIRouter, Depends, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse

from osmosis.base.installation import extra_command
from osmosis.base.jsonable import JsonObject
from osmosis.bridges.spans import iterate_spans, read_calls
from osmosis.errors import Conflict, NotFound, OsmosisError, TooLarge, ValidationError
from osmosis.platform import Platform, tables
from osmosis.platform.auth.dependencies import PlatformDep, Scope, ScopeDep, may, scope_with
from osmosis.platform.background import run_in_turn, slow
from osmosis.platform.datasets import ingest, production, service as datasets
from osmosis.platform.http import JsonRoute, Reading, Writing, limit_of
from osmosis.platform.objects.parts import SIGNED, Parts, object_url, receive_part, upload_key
from osmosis.platform.paging import LogSliceDep, PageDep
from osmosis.platform.workspaces import audit
from osmosis.records.api.body import LogPage, Nothing
from osmosis.records.api.datasets import (
    AbortDataset,
    CallJudgement,
    CompleteDataset,
    CreatedDataset,
    DatasetDownload,
    DatasetEntry,
    DatasetPage,
    NewDataset,
    ProductionCallEntry,
    ProductionCallPage,
    ReceivedTraces,
)

router = APIRouter(route_class=JsonRoute)
DataDep = Annotated[Scope, may("data")]


@router.post("/api/cli/datasets")
def create(body: NewDataset, platform: PlatformDep, session: Writing, scope: DataDep) -> CreatedDataset:
    file = datasets.NewFile(body.file_name, body.file_size, body.extension.lower().lstrip("."))
    part_bytes = platform.settings.part_bytes
    dataset, upload = datasets.create(
        session, scope.workspace, scope.user, file, part_bytes=part_bytes, overwrite_id=body.overwrite_dataset_id
    )
    audit.note(session, scope, "dataset.upload", dataset.name, workspace=scope.workspace, bytes=body.file_size)
    plan = datasets.build_upload_plan(platform, upload)
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
def list_datasets(platform: PlatformDep, session: Reading, scope: ScopeDep, page: PageDep) -> DatasetPage:
    rows, total = page.fetch(session, datasets.select_datasets(scope.workspace))
    bodies = [datasets.build_entry(DatasetEntry, platform.settings, row) for row in rows]
    return DatasetPage(datasets=bodies, **page.place(len(bodies), total))


@router.get("/api/cli/datasets/{name}")
def get_dataset(name: str, platform: PlatformDep, session: Reading, scope: ScopeDep) -> DatasetEntry:
    dataset = datasets.find(session, scope.workspace, name)
    return datasets.build_entry(DatasetEntry, platform.settings, dataset)


@router.delete("/api/cli/datasets/{name}", status_code=204)
@slow("objects")
def delete(name: str, platform: PlatformDep, scope: ScopeDep) -> None:
    with platform.db.write() as session:
        dataset = datasets.find(session, scope.workspace, name)
        datasets.delete(session, dataset)
        audit.note(session, scope, "dataset.delete", dataset.name, workspace=scope.workspace)
    ingest.clean(platform, dataset.id)


@router.get("/api/cli/datasets/{name}/download")
def download(name: str, platform: PlatformDep, scope: ScopeDep) -> DatasetDownload:
    with platform.db.read() as session:
        dataset = datasets.find(session, scope.workspace, name)
    if dataset.path is None:
        raise Conflict(f"dataset {dataset.name!r} is {dataset.status}, so it has no file to download")
    url = object_url(platform, dataset.path, f"datasets/{dataset.id}", method="GET")
    name, lifetime_s = f"{dataset.name}.{dataset.format}", platform.settings.url_lifetime_s
    return DatasetDownload(presigned_url=url, expires_in=lifetime_s, file_name=name)


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
def logs(name: str, session: Reading, scope: ScopeDep, page: LogSliceDep) -> LogPage:
    dataset = datasets.find(session, scope.workspace, name)
    return page.fetch(session, tables.DatasetLog, tables.DatasetLog.dataset_id == dataset.id)


ApplicationDep = Annotated[Scope, Depends(scope_with("inference", "data"))]
CALLS, TRACES = "/api/cli/production-calls", "/v1/traces"


@router.post(TRACES)
async def export_traces(request: Request, platform: PlatformDep, scope: ApplicationDep) -> ReceivedTraces:
    body, headers = await request.body(), request.headers

    def store() -> ReceivedTraces:
        calls = list(read_calls(_read(body, headers.get("content-encoding", ""), headers.get("content-type", ""))))
        captured = [call for call in calls if call.messages]
        refused = production.store(platform, scope.workspace.id, "otlp", captured)
        problems = [f"{refused} calls are larger than {production.MOST_BYTES} bytes"] if refused else []
        if silent := len(calls) - len(captured):
            problems.append(f"{silent} have no content: OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true")
        answer = {"rejectedSpans": refused, "errorMessage": "; ".join(problems)}
        return ReceivedTraces.model_validate({"partialSuccess": answer} if problems else {})

    return await run_in_threadpool(store)


def _read(body: bytes, encoding: str, kind: str) -> JsonObject:
    """Return an export as OTLP's JSON; raise ValidationError, or TooLarge for one that grows beyond its limit."""
    most = limit_of(TRACES) or 0
    try:
        body = gzip.GzipFile(fileobj=BytesIO(body)).read(most + 1) if encoding == "gzip" else body
        if len(body) > most:
            raise TooLarge(f"the request body is larger than {most} bytes")
        document = _read_protobuf(body) if kind.startswith("application/x-protobuf") else orjson.loads(body)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise ValidationError(f"the body is not what its headers say: {error}") from None
    if not isinstance(document, dict):
        raise ValidationError("the body is not an ExportTraceServiceRequest")
    return document


def _read_protobuf(body: bytes) -> JsonObject:
    try:
        messages = importlib.import_module("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    except ImportError:
        hint = f"OTEL_EXPORTER_OTLP_PROTOCOL=http/json; or on the platform: {extra_command('otlp')}"
        raise OsmosisError("this platform cannot read protobuf", hint=hint) from None
    json_format, protobuf = (importlib.import_module(f"google.protobuf.{name}") for name in ("json_format", "message"))
    try:
        document: JsonObject = json_format.MessageToDict(messages.ExportTraceServiceRequest.FromString(body))
    except protobuf.DecodeError as error:
        raise ValueError(error) from None
    for span in iterate_spans(document):  # OTLP's JSON has ids in hexadecimal, that of protobuf in base64
        span |= {key: b64decode(span.get(key, "")).hex() for key in ("traceId", "spanId")}
    return document


@router.get(CALLS)
def list_calls(session: Reading, scope: ScopeDep, page: PageDep, label: str = "") -> ProductionCallPage:
    rows, total = page.fetch(session, production.select_calls(scope.workspace, label))
    entries = [ProductionCallEntry.from_row(row) for row in rows]
    return ProductionCallPage(calls=entries, **page.place(len(entries), total))


@router.put(CALLS + "/{call_id}")
@slow("objects")
def judge_call(call_id: str, body: CallJudgement, platform: PlatformDep, scope: ApplicationDep) -> ProductionCallEntry:
    return ProductionCallEntry.from_row(production.judge(platform, scope.workspace, scope, call_id, body))
