"""Rollouts as OpenTelemetry traces (conventions for generative AI), with an event for each score; messages only with
`content`. Ids follow from the rollout's own, so sending twice is once. The exporter's own variables set endpoint,
headers and encoding (`OTEL_EXPORTER_OTLP_*`; `http/json` needs the extra `otlp-json`)."""

import hashlib
import importlib
import logging
import os
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from io import StringIO

import httpx
import orjson
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from osmosis.base.jsonable import JsonObject, without_none
from osmosis.bridges.export_stream import ExportedRun, Records, Rows
from osmosis.errors import NetworkError
from osmosis.records.run.rollout import Message, Rollout, Score, Usage

_REQUEST_S = 10
_RESULT = "gen_ai.evaluation.result"


class OtlpExporter:
    def __init__(self, run: ExportedRun, endpoint: str = "", headers: Mapping[str, str] = {}, basic: str = "") -> None:
        self._run, self._log = run, StringIO()
        self._agent, self._model = str(run.params["agent"]), str(run.params["model.name"])
        logging.basicConfig(stream=self._log, format="%(message)s")  # why a request failed, which it only logs
        address = run.address.rstrip("/").removesuffix("/v1/traces")
        endpoint = endpoint or (f"{address}/v1/traces" if address else "")
        login = {**headers, **({"Authorization": f"Basic {b64encode(basic.encode()).decode()}"} if basic else {})}
        encoding = "json" if os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL") == "http/json" else "proto"
        module = importlib.import_module(f"opentelemetry.exporter.otlp.{encoding}.http.trace_exporter")
        self._exporter = module.OTLPSpanExporter(endpoint or None, headers=login or None, timeout=_REQUEST_S)
        self._resource = Resource.create({"service.name": "osmosis"})

    def send(self, records: Records) -> None:
        spans = [span for rollout in records.rollouts for span in self._make_spans(rollout)]
        if spans and self._exporter.export(spans) is not SpanExportResult.SUCCESS:
            raise NetworkError(self._log.getvalue().strip().rpartition("\n")[2] or "the traces were refused")

    def finish(self, figures: Mapping[str, float], rows: Rows) -> None: ...

    def _make_spans(self, rollout: Rollout) -> Iterator[ReadableSpan]:
        run, failure = self._run, rollout.failure
        problem = failure.message if failure else None
        agent = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": self._agent,
            "gen_ai.conversation.id": rollout.rollout_id,
            "test.suite.name": run.name,
            "test.case.id": rollout.row_key or str(rollout.row_index),
            "osmosis.attempt": rollout.attempt,
            "osmosis.cost_usd": rollout.usage.cost_usd,
            "error.type": failure and failure.category.value,
            **(_content(rollout.messages) if run.content else {}),
        }
        yield self._span(rollout, 0, f"invoke_agent {self._agent}", agent, rollout.usage, problem)
        for number, call in enumerate(rollout.calls, 1):
            chat = {
                "gen_ai.operation.name": "chat",
                "gen_ai.response.model": call.model,
                "gen_ai.response.finish_reasons": call.finish_reason and [call.finish_reason],
            }
            yield self._span(rollout, number, f"chat {call.model or self._model}", chat, call.usage, call.error)

    def _span(
        self, rollout: Rollout, number: int, name: str, own: JsonObject, usage: Usage, problem: str | None
    ) -> ReadableSpan:
        call = rollout.calls[number - 1] if number else None
        start_ms = rollout.started_at.timestamp() * 1000 + (call.started_ms if call else 0)
        end = int((start_ms + (call or rollout).duration_ms) * 1e6)
        attributes = own | {
            "gen_ai.provider.name": self._model.partition("/")[0],
            "gen_ai.request.model": self._model,
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
        }
        return ReadableSpan(
            name,
            _context(rollout, number),
            _context(rollout, 0) if number else None,
            self._resource,
            without_none(attributes),
            () if number else [Event(_RESULT, _result(name, each), end) for name, each in rollout.scores.items()],
            kind=SpanKind.CLIENT if number else SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, problem) if problem else Status(),
            start_time=int(start_ms * 1e6),
            end_time=end,
        )


class WeaveExporter(OtlpExporter):
    def __init__(self, run: ExportedRun) -> None:
        server = os.environ.get("WF_TRACE_SERVER_URL", "https://trace.wandb.ai").rstrip("/")
        super().__init__(run, f"{server}/otel/v1/traces", basic=f"api:{os.environ['WANDB_API_KEY']}")
        entity, _, project = run.address.partition("/")
        self._resource = Resource.create({"wandb.entity": entity, "wandb.project": project})


class LangfuseExporter(OtlpExporter):
    """An attempt is a trace of its own, so that repetitions of a row stay apart."""

    def __init__(self, run: ExportedRun) -> None:
        self._login = (os.environ["LANGFUSE_PUBLIC_KEY"], os.environ["LANGFUSE_SECRET_KEY"])
        self._url = f"{run.address or os.environ.get('LANGFUSE_BASE_URL', 'https://cloud.langfuse.com')}/api/public"
        headers = {"x-langfuse-ingestion-version": "4"}
        super().__init__(run, f"{self._url}/otel/v1/traces", headers, basic=":".join(self._login))

    def send(self, records: Records) -> None:
        super().send(records)
        scores = [(rollout, *item) for rollout in records.rollouts for item in rollout.scores.items()]
        for rollout, name, score in scores:
            at = rollout.started_at + timedelta(milliseconds=rollout.duration_ms)
            body: JsonObject = {"name": name, "value": score.value, "comment": score.reason}
            body["timestamp"] = at.isoformat()
            body["id"] = hashlib.sha256(f"{rollout.rollout_id}/{name}".encode()).hexdigest()[:32]
            body["traceId"] = f"{_context(rollout, 0).trace_id:032x}"
            body["metadata"] = {"row": rollout.row_key, "attempt": rollout.attempt, "parts": score.parts}
            if score.value is not None:
                answer = httpx.post(f"{self._url}/scores", json=body, auth=self._login, timeout=_REQUEST_S)
                answer.raise_for_status()


def _content(messages: Sequence[Message]) -> JsonObject:
    sides = {"input": messages[:-1], "output": messages[-1:]}
    return {f"gen_ai.{side}.messages": orjson.dumps([_parts(m) for m in part]).decode() for side, part in sides.items()}


def _parts(message: Message) -> JsonObject:
    part = {"type": "text", "content": message.get("content")}
    if "tool_call_id" in message:
        part = {"type": "tool_call_response", "id": message["tool_call_id"], "response": message.get("content")}
    calls = [
        {"type": "tool_call", "id": call.get("id"), **call["function"]} for call in message.get("tool_calls") or ()
    ]
    return {"role": message.get("role"), "parts": [part, *calls]}


def _result(name: str, score: Score) -> JsonObject:
    result = {"name": name, "score.value": score.value, "explanation": score.reason}
    named = {f"gen_ai.evaluation.{key}": value for key, value in result.items()}
    return without_none({**named, "error.type": score.failure and score.failure.category.value})


def _context(rollout: Rollout, number: int) -> SpanContext:
    texts = (rollout.rollout_id, f"{rollout.rollout_id}/{number}")
    trace, span = (hashlib.sha256(text.encode()).hexdigest() for text in texts)
    return SpanContext(int(trace[:32], 16), int(span[:16], 16), False, TraceFlags(1))
