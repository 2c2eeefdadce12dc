"""Traces of a run, at a receiver of OpenTelemetry's protocol on this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from gzip import decompress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="extra otlp")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from support.command_line import run_command
from support.eval_project import write_project


class Receiver(ThreadingHTTPServer):
    """Keeps the spans that are sent to /v1/traces by their id, as a real one does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spans: dict[bytes, Any] = {}
        self.requests = 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        assert self.path == "/v1/traces"
        body = self.rfile.read(int(self.headers["content-length"]))
        sent = ExportTraceServiceRequest.FromString(decompress(body) if self.headers["content-encoding"] else body)
        self.server.requests += 1
        for resource in sent.resource_spans:
            for scope in resource.scope_spans:
                self.server.spans.update({span.span_id: span for span in scope.spans})
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    running = Receiver()
    yield running
    running.shutdown()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write_project(tmp_path, agent="otlp_agent", score="otlp_score", rows=3)
    return tmp_path


FLAGS = ("-d", "d.jsonl", "--eval-fn", "otlp_score:exact", "--model", "offline/calculator", "--n", "2")


def test_each_rollout_is_one_trace_and_sending_twice_is_once(project: Path, receiver: Receiver) -> None:
    target = f"otlp:{receiver.url}"
    run = run_command("eval", "-m", "otlp_agent:agent", *FLAGS, "--name", "traced", "--export", target, cwd=project)
    assert run.code == 0, run.err
    live = dict(receiver.spans)
    roots = [span for span in live.values() if not span.parent_span_id]
    calls = [span for span in live.values() if span.parent_span_id]
    assert (len(roots), len(calls), len({span.trace_id for span in live.values()})) == (6, 6, 6)
    assert {span.parent_span_id for span in calls} == {span.span_id for span in roots}
    attributes = {item.key: item.value for item in roots[0].attributes}
    assert attributes["gen_ai.operation.name"].string_value == "invoke_agent"
    assert attributes["gen_ai.usage.input_tokens"].int_value > 0
    (event,) = roots[0].events
    result = {item.key: item.value for item in event.attributes}
    assert event.name == "gen_ai.evaluation.result"
    assert result["gen_ai.evaluation.name"].string_value == "otlp_score:exact"
    assert result["gen_ai.evaluation.score.value"].double_value in (0.0, 1.0)
    assert all("prompt" not in item.key and "messages" not in item.key for item in roots[0].attributes)

    again = run_command("eval", "export", "traced", "--format", "otlp", "--url", receiver.url, cwd=project)
    assert again.code == 0, again.err
    assert receiver.requests > 1
    assert receiver.spans == live


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--format", "otlp", "-o", "x"), "--output and --format otlp cannot be used together"),
        (("--format", "otlp", "--overwrite"), "--overwrite and --format otlp cannot be used together"),
        (("--format", "csv", "--url", "http://127.0.0.1:9"), "--url and --format csv cannot be used together"),
    ],
)
def test_a_flag_of_another_format_is_refused(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    refused = run_command("eval", "export", "traced", *words, cwd=tmp_path)
    assert (refused.code, said in refused.err) == (2, True), refused.err


def test_a_receiver_that_is_not_there_costs_one_warning(project: Path) -> None:
    words = ("eval", "-m", "otlp_agent:agent", *FLAGS, "--name", "lost", "--export", "otlp:http://127.0.0.1:9")
    run = run_command(*words, cwd=project)
    assert run.code == 0, run.err
    assert run.err.count("6 of 6 traces were not sent") == 1
    assert "osmosis eval export lost --format otlp" in run.err
    wrong = run_command(*words[:-1], "jaeger:x", cwd=project)
    assert "--export jaeger:x is not otlp" in wrong.err
