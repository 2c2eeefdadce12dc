"""Rollouts as OpenTelemetry traces (conventions for generative AI), by the official exporter of the extra `otlp`.

One trace a rollout: the agent with an event for each score, and its model calls; no messages. Ids follow from the
rollout's own, so that sending twice is once. Headers, and the endpoint when none is given, are the exporter's own
variables (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_EXPORTER_OTLP_HEADERS`)."""

import hashlib
import logging
from collections.abc import Iterator
from queue import SimpleQueue
from threading import Thread

from osmosis.base.installation import extra_command
from osmosis.base.jsonable import JsonObject
from osmosis.base.redact import Redactor
from osmosis.errors import OsmosisError
from osmosis.records.run.plan import EvalPlan
from osmosis.records.run.rollout import Rollout, Score, Usage

try:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExportResult
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
except ImportError as error:
    raise OsmosisError("OpenTelemetry's exporter is not installed", hint=extra_command("otlp")) from error

_REQUEST_S, _LAST_WAIT_S, _MOST_FAILURES, _BATCH = 10, 30, 3, 200
_RESULT = "gen_ai.evaluation.result"


class TraceSender:
    """Sends rollouts from a thread of its own: `add` never waits, and `close` returns how many were lost."""

    def __init__(self, url: str | None, plan: EvalPlan, redactor: Redactor) -> None:
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # failures are counted here
        endpoint = url and f"{url.rstrip('/').removesuffix('/v1/traces')}/v1/traces"
        self._exporter = OTLPSpanExporter(endpoint, timeout=_REQUEST_S)
        self._plan, self._redactor = plan, redactor
        self._resource = Resource.create({"service.name": "osmosis"})
        self._queue: SimpleQueue[Rollout | None] = SimpleQueue()
        self.added = self.sent = 0
        self._thread = Thread(target=self._send, name="otlp", daemon=True)
        self._thread.start()

    def add(self, rollout: Rollout) -> None:
        self.added += 1
        self._queue.put(rollout)

    def close(self) -> int:
        self._queue.put(None)
        self._thread.join(_LAST_WAIT_S)
        return self.added - self.sent

    def _send(self) -> None:
        failures, more = 0, True
        while more and failures < _MOST_FAILURES:
            batch = [self._queue.get(), *(self._queue.get() for _ in range(min(self._queue.qsize(), _BATCH)))]
            rollouts = [rollout for rollout in batch if rollout is not None]
            more = len(rollouts) == len(batch)
            spans = [span for rollout in rollouts for span in self._make_spans(rollout)]
            if not spans or self._exporter.export(spans) is SpanExportResult.SUCCESS:
                self.sent, failures = self.sent + len(rollouts), 0
            else:
                failures += 1

    def _make_spans(self, rollout: Rollout) -> Iterator[ReadableSpan]:
        plan, failure = self._plan, rollout.failure
        problem = failure.message if failure else None
        agent = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": plan.agent,
            "gen_ai.conversation.id": rollout.rollout_id,
            "test.suite.name": plan.name,
            "test.case.id": rollout.row_key or str(rollout.row_index),
            "osmosis.attempt": rollout.attempt,
            "osmosis.cost_usd": rollout.usage.cost_usd,
            "error.type": failure and failure.category.value,
        }
        yield self._span(rollout, 0, f"invoke_agent {plan.agent}", agent, rollout.usage, problem)
        for number, call in enumerate(rollout.calls, 1):
            chat = {
                "gen_ai.operation.name": "chat",
                "gen_ai.response.model": call.model,
                "gen_ai.response.finish_reasons": call.finish_reason and [call.finish_reason],
            }
            yield self._span(rollout, number, f"chat {call.model or plan.model.name}", chat, call.usage, call.error)

    def _span(
        self, rollout: Rollout, number: int, name: str, own: JsonObject, usage: Usage, problem: str | None
    ) -> ReadableSpan:
        call = rollout.calls[number - 1] if number else None
        start_ms = rollout.started_at.timestamp() * 1000 + (call.started_ms if call else 0)
        end = int((start_ms + (call or rollout).duration_ms) * 1e6)
        attributes = own | {
            "gen_ai.provider.name": self._plan.model.name.partition("/")[0],
            "gen_ai.request.model": self._plan.model.name,
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
        }
        return ReadableSpan(
            name,
            _context(rollout, number),
            _context(rollout, 0) if number else None,
            self._resource,
            _present(attributes),
            () if number else [Event(_RESULT, self._result(name, each), end) for name, each in rollout.scores.items()],
            kind=SpanKind.CLIENT if number else SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, self._redactor.text(problem)) if problem else Status(),
            start_time=int(start_ms * 1e6),
            end_time=end,
        )

    def _result(self, name: str, score: Score) -> JsonObject:
        reason, failure = score.reason and self._redactor.text(score.reason), score.failure
        result = {"name": name, "score.value": score.value, "explanation": reason}
        named = {f"gen_ai.evaluation.{key}": value for key, value in result.items()}
        return _present({**named, "error.type": failure and failure.category.value})


def _present(values: JsonObject) -> JsonObject:
    return {name: value for name, value in values.items() if value is not None}


def _context(rollout: Rollout, number: int) -> SpanContext:
    texts = (rollout.rollout_id, f"{rollout.rollout_id}/{number}")
    trace, span = (hashlib.sha256(text.encode()).hexdigest() for text in texts)
    return SpanContext(int(trace[:32], 16), int(span[:16], 16), False, TraceFlags(1))
