"""Calls of models in production: traces that applications export over OTLP, the list, labels and rows. An application
sends with a token of scope `inference`, and labels with it."""

import gzip
import importlib
import zlib
from base64 import b64decode
from io import BytesIO
from typing import Annotated

import orjson
from fastapi import APIRouter, Depends, Request
from fastapi.concurrency import run_in_threadpool

from osmosis.base.installation import extra_command
from osmosis.base.jsonable import JsonObject
from osmosis.bridges.spans import iterate_spans, read_calls
from osmosis.errors import OsmosisError, TooLarge, ValidationError
from osmosis.platform.auth.dependencies import PlatformDep, Scope, ScopeDep, scope_with
from osmosis.platform.background import slow
from osmosis.platform.datasets import production
from osmosis.platform.http.body_limits import limit_of
from osmosis.platform.http.json_route import JsonRoute
from osmosis.platform.paging import PageDep
from osmosis.records.api.datasets import CallJudgement, ProductionCallEntry, ProductionCallPage, ReceivedTraces

router = APIRouter(route_class=JsonRoute)
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
def list_calls(platform: PlatformDep, scope: ScopeDep, page: PageDep, label: str = "") -> ProductionCallPage:
    with platform.db.read() as session:
        rows, total = page.fetch(session, production.select_calls(scope.workspace, label))
    entries = [ProductionCallEntry.from_row(row) for row in rows]
    return ProductionCallPage(calls=entries, **page.place(len(entries), total))


@router.put(CALLS + "/{call_id}")
@slow("objects")
def judge_call(call_id: str, body: CallJudgement, platform: PlatformDep, scope: ApplicationDep) -> ProductionCallEntry:
    return ProductionCallEntry.from_row(production.judge(platform, scope.workspace, scope, call_id, body))
