"""Calls of models in production: by OpenTelemetry's own exporter and by hand, stored once and without secrets,
labelled, made rows, and gone in time."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.responses import StreamingResponse

from osmosis.datasets.scan import check_upload
from osmosis.platform import tables
from osmosis.platform.auth import tokens, users
from osmosis.platform.datasets import production
from osmosis.platform.datasets.production import read_answer
from osmosis.platform.maintenance import gc
from osmosis.platform.models.inference import InferenceTarget
from osmosis.platform.workspaces import service as workspaces
from osmosis.records.base import utc_now
from support.platform_app import running_platform

from .conftest import Site, rows_of

QUESTION = [{"role": "user", "parts": [{"type": "text", "content": "Where is parcel 17? My key is hunter2-hunter2."}]}]
ANSWER = [{"role": "assistant", "parts": [{"type": "text", "content": "In Oslo."}], "finish_reason": "stop"}]


def spans_of(*contents: dict[str, Any]) -> list[ReadableSpan]:
    """Spans of an application, as the SDK makes them."""
    memory = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    tracer = provider.get_tracer("app")
    for content in contents:
        with tracer.start_as_current_span("chat", attributes={"gen_ai.request.model": "gpt-x", **content}):
            pass
    return list(memory.get_finished_spans())


def captured(**more: Any) -> dict[str, Any]:
    brief = [{"type": "text", "content": "Brief."}]
    return {
        "gen_ai.operation.name": "chat", "gen_ai.system_instructions": json.dumps(brief),
        "gen_ai.input.messages": json.dumps(QUESTION), "gen_ai.output.messages": json.dumps(ANSWER), **more,
    }  # fmt: skip


def export(site: Site, spans: list[ReadableSpan], expect: int = 200, **headers: str) -> Any:
    """Send as protobuf, as the exporter encodes it."""
    sent = {"Content-Type": "application/x-protobuf", **headers}
    body = encode_spans(spans).SerializeToString()
    body = gzip.compress(body) if headers.get("Content-Encoding") == "gzip" else body
    return site.json("POST", "/v1/traces", expect=expect, content=body, headers=sent)


def calls_of(site: Site, query: str = "") -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = site.json("GET", f"production-calls{query}")["calls"]
    return calls


def rows_in(site: Site, name: str) -> list[dict[str, Any]]:
    path = site.only(sa.select(tables.Dataset.path).where(tables.Dataset.name == name))
    return [json.loads(line) for line in site.platform.objects.fetch(path or "").read_text().splitlines()]


def test_the_official_exporter_sends_traces_over_http(tmp_path: Path) -> None:
    with running_platform(tmp_path / "data") as running:
        exporter = OTLPSpanExporter(f"{running.url}/v1/traces", headers=running.headers)
        spans = spans_of(captured(), {"gen_ai.operation.name": "execute_tool"})
        assert exporter.export(spans) is SpanExportResult.SUCCESS
        assert exporter.export(spans) is SpanExportResult.SUCCESS
        listed = httpx.get(f"{running.url}/api/cli/production-calls", headers=running.headers).json()
        (call,) = listed["calls"]
        refused = OTLPSpanExporter(f"{running.url}/v1/traces", headers={"Authorization": "Bearer osm_no"})
        assert refused.export(spans) is SpanExportResult.FAILURE
    context = spans[0].context
    assert call["external_id"] == f"{context.trace_id:032x}:{context.span_id:016x}"
    assert (call["model"], call["source"], call["answer"], call["label"]) == ("gpt-x", "otlp", "In Oslo.", "")
    assert [message["role"] for message in call["messages"]] == ["system", "user"]


def test_a_call_is_stored_once_and_without_the_secrets_of_its_workspace(site: Site) -> None:
    site.json("POST", "environment-secrets", json={"name": "KEY", "value": "hunter2-hunter2", "scope": "workspace"})
    spans = spans_of(captured())
    assert export(site, spans) == export(site, spans, **{"Content-Encoding": "gzip"}) == {}
    (call,) = calls_of(site)
    assert call["messages"][1]["content"] == "Where is parcel 17? My key is [redacted]."
    with site.platform.db.read() as session:
        assert "hunter2" not in str(session.execute(sa.text("SELECT messages FROM production_calls")).all())


def test_json_is_read_and_what_has_another_form_passed_over(site: Site) -> None:
    def pair(key: str, text: str) -> dict[str, Any]:
        return {"key": key, "value": {"stringValue": text}}

    old = {**QUESTION[0], "parts": [{"type": "text", "content": "Hi\0"}]}
    numbered = [pair("gen_ai.request.model", "old"), pair("gen_ai.output.messages", json.dumps([{**old, "role": "x"}])),
                pair("gen_ai.input.messages", json.dumps([old]))]  # fmt: skip
    event = {"name": "gen_ai.client.inference.operation.details",
             "attributes": [pair("gen_ai.input.messages", json.dumps(QUESTION))]}  # fmt: skip
    spans = [
        {"traceId": "a" * 32, "spanId": "1" * 16, "attributes": numbered},
        {
            "traceId": "a" * 32,
            "spanId": "2" * 16,
            "attributes": [pair("gen_ai.request.model", "new")],
            "events": [event],
        },
        {"traceId": "a" * 32, "spanId": "3" * 16, "attributes": [pair("gen_ai.request.model", "silent")]},
        {"traceId": "a" * 32, "spanId": "4" * 16, "attributes": "nonsense", "events": 3},
    ]
    answer = site.json("POST", "/v1/traces", json={"resourceSpans": [{"scopeSpans": [{"spans": spans}]}, 7]})
    assert answer["partialSuccess"]["rejectedSpans"] == 0
    assert "1 have no content" in answer["partialSuccess"]["errorMessage"]
    new, old = sorted(calls_of(site), key=lambda call: str(call["model"]))
    assert (old["model"], old["answer"]) == ("old", "Hi")
    assert (new["model"], new["answer"]) == ("new", "")
    long = [numbered[0], pair("gen_ai.input.messages", json.dumps([{"role": "user", "content": "x" * 2**20}]))]
    large = [{**spans[0], "spanId": "5" * 16, "attributes": long}]
    answer = site.json("POST", "/v1/traces", json={"resourceSpans": [{"scopeSpans": [{"spans": large}]}]})
    assert answer["partialSuccess"]["rejectedSpans"] == 1
    assert len(calls_of(site)) == 2


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{", {}, 400),
        (b"[]", {}, 400),
        (b"\xff\xff", {"Content-Type": "application/x-protobuf"}, 400),
        (b"no gzip", {"Content-Encoding": "gzip"}, 400),
        (gzip.compress(b" " * (17 * 1024 * 1024)), {"Content-Encoding": "gzip"}, 413),
        (b" " * (17 * 1024 * 1024), {}, 413),
    ],
    ids=["not JSON", "a list", "not protobuf", "not gzip", "a bomb", "too large"],
)
def test_what_is_no_export_is_refused(shared: Site, body: bytes, headers: dict[str, str], status: int) -> None:
    answer = shared.http.post("/v1/traces", content=body, headers={"Content-Type": "application/json", **headers})
    assert answer.status_code == status, answer.text


def test_a_thumbs_down_becomes_a_row_once(site: Site) -> None:
    export(site, spans_of(captured(), captured()))
    first, second = calls_of(site)
    assert site.json("PUT", f"production-calls/{first['external_id']}", json={"label": "up"})["label"] == "up"
    page = site.http.post(
        f"/demo/production/{second['id']}", data={"label": "down", "dataset": "hard", "ground_truth": "Rome"},
        follow_redirects=False,
    )  # fmt: skip
    assert page.status_code == 303, page.text
    for name in ("hard", "hard", "other"):
        row = site.json("PUT", f"production-calls/{first['id']}", json={"label": "up", "dataset": name})
        assert row["dataset"] == name
    down, up = rows_in(site, "hard")
    assert (down["id"], down["ground_truth"], down["metadata"]["production"]["label"]) == (
        second["external_id"], "Rome", "down",
    )  # fmt: skip
    assert (up["id"], up["ground_truth"]) == (first["external_id"], None)
    dataset = site.json("GET", "datasets/hard")
    assert (dataset["row_count"], dataset["status"], len(dataset["data_preview"])) == (2, "uploaded", 2)
    assert [call["id"] for call in calls_of(site, "?label=down")] == [second["id"]]
    assert "Thumbs down, add to" in site.http.get("/demo/production").text
    assert site.json("PUT", "production-calls/none", expect=404, json={"label": "up"})["hint"]


def test_rows_have_the_columns_of_their_dataset(ready: Site, tmp_path: Path) -> None:
    export(ready, spans_of(*[captured()] * 4))
    down = {"label": "down", "dataset": "production"}
    for call in calls_of(ready):
        ready.json("PUT", f"production-calls/{call['id']}", json=down)
    rows = rows_in(ready, "production")
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert check_upload(tmp_path / "p.jsonl", preview=1).found == 0
    refused = ready.json("PUT", f"production-calls/{call['id']}", expect=400, json={**down, "dataset": "sums"})
    assert "columns differ" in refused["issues"][0]["message"]
    assert len(rows_in(ready, "sums")) == 40
    ready.upload("open", rows_of(4).rstrip(b"\n"))
    for name, status in (("table", 409), ("open", 400)):
        if name == "table":
            ready.upload(name, b"user_prompt,ground_truth\n" + b"a,1\n" * 4, "csv")
        ready.json("PUT", f"production-calls/{call['id']}", expect=status, json={**down, "dataset": name})
    assert ready.json("GET", "datasets/open")["row_count"] == 4


def test_two_workspaces_never_see_each_others_calls(site: Site) -> None:
    with site.platform.db.write() as session:
        mallory = users.create_user(session, "mallory", email="m@localhost", name="Mallory")
        workspaces.create(session, mallory, "elsewhere")
        token = tokens.issue(session, mallory, "test").text
    spans = spans_of(captured())
    export(site, spans)
    (call,) = calls_of(site)
    theirs = {"Authorization": f"Bearer {token}", "X-Osmosis-Workspace": "elsewhere"}
    export(site, spans, **theirs)  # the same ids are two calls in two workspaces
    listed = site.anonymous.get("/api/cli/production-calls", headers=theirs).json()["calls"]
    assert len(listed) == 1
    assert listed[0]["id"] != call["id"]
    down = {"label": "down", "dataset": "stolen"}
    answer = site.anonymous.put(f"/api/cli/production-calls/{call['id']}", json=down, headers=theirs)
    assert answer.status_code == 404
    page = site.anonymous.post(f"/elsewhere/production/{call['id']}", data={"label": "down"}, headers=theirs)
    assert page.status_code == 404
    assert site.anonymous.get("/demo/production", headers=theirs).status_code == 404


def test_calls_go_in_time(site: Site) -> None:
    export(site, spans_of(captured(), captured()))
    with site.platform.db.write() as session:
        session.scalars(sa.select(tables.ProductionCall)).all()[0].created_at = utc_now() - timedelta(days=31)
    assert {waste.kind: waste.size for waste in gc.sweep(site.platform)}["production calls"] == 1
    assert len(calls_of(site)) == 1


def test_with_no_days_to_keep_nothing_is_stored(tmp_path: Path) -> None:
    with running_platform(tmp_path / "data", environ={"OSMOSIS_KEEP_CALLS_DAYS": "0"}) as running:
        exporter = OTLPSpanExporter(f"{running.url}/v1/traces", headers=running.headers)
        assert exporter.export(spans_of(captured())) is SpanExportResult.SUCCESS
        listed = httpx.get(f"{running.url}/api/cli/production-calls", headers=running.headers).json()
    assert listed["calls"] == []


CHAT = b'{"id": "c-1", "choices": [{"message": {"role": "assistant", "content": "Hello"}}]}'
CHAT_EVENTS = b"""data: {"id": "c-1", "choices": [{"delta": {"content": "Hel"}}]}\n
data: {"id": "c-1", "choices": [{"delta": {"content": "lo"}}]}\n\ndata: [DONE]\n\n"""
MESSAGES = b'{"id": "c-1", "content": [{"type": "text", "text": "Hello"}]}'
MESSAGES_EVENTS = b"""event: message_start\ndata: {"type": "message_start", "message": {"id": "c-1", "content": []}}\n
event: content_block_delta\ndata: {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Hel"}}\n
event: content_block_delta\ndata: {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "lo"}}\n\n"""
RESPONSES = b'{"id": "c-1", "output": [{"type": "message", "content": [{"type": "output_text", "text": "Hello"}]}]}'
RESPONSES_EVENTS = b"""data: {"type": "response.created", "response": {"id": "c-1", "output": []}}\n
data: {"type": "response.output_text.delta", "item_id": "m", "delta": "Hello"}\n
data: {"type": "response.output_text.done", "item_id": "m", "text": "Hello"}\n\n"""


@pytest.mark.parametrize("body", [CHAT, CHAT_EVENTS, MESSAGES, MESSAGES_EVENTS, RESPONSES, RESPONSES_EVENTS])
def test_the_answer_of_a_deployment_is_read_in_every_dialect(body: bytes) -> None:
    assert read_answer(body) == ("c-1", "Hello")


async def test_a_stream_without_an_end_is_passed_on_and_not_kept(site: Site) -> None:
    async def stream() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"data: {}\n\n" + b"x" * (production.MOST_STREAMED // 2)

    target = InferenceTarget("d", "multiply-1", "http://127.0.0.1:9", "k", "w")
    answer = production.recorded(site.platform, target, "/v1/chat/completions", b"{}", StreamingResponse(stream()))
    passed, held = 0, []
    async for piece in answer.body_iterator:
        passed += len(piece)
        held.append(sum(map(len, answer.background.args[-1])))
    assert passed > 1.5 * production.MOST_STREAMED
    assert held[0] > 0
    assert held[-1] == 0
