"""A receiver of OpenTelemetry's traces on this machine, in protobuf or JSON; it takes scores as Langfuse does, too."""

from __future__ import annotations

import json
import threading
from base64 import b64encode
from collections.abc import Mapping
from gzip import decompress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class TraceReceiver(ThreadingHTTPServer):
    """Keeps the spans and scores that are sent by their id, as a real one does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spans: dict[bytes, Any] = {}
        self.scores: dict[str, dict[str, Any]] = {}
        self.headers: list[Mapping[str, str]] = []
        self.paths: list[str] = []
        self.resources: list[dict[str, str]] = []
        self.refuses = 0
        """Requests that are still to be refused."""
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def roots(self) -> list[Any]:
        return [span for span in self.spans.values() if not span.parent_span_id]


def attributes_of(holder: Any) -> dict[str, Any]:
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in holder.attributes}


class _Handler(BaseHTTPRequestHandler):
    server: TraceReceiver

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["content-length"]))
        body = decompress(raw) if self.headers["content-encoding"] else raw
        self.server.headers.append({name.lower(): value for name, value in self.headers.items()})
        self.server.paths.append(self.path)
        self.server.refuses -= 1
        if self.server.refuses >= 0:
            self._answer(400, b"{}")
        elif self.path.endswith("/scores"):
            score = json.loads(body)
            self.server.scores[score["id"]] = score
            self._answer(200, json.dumps({"id": score["id"]}).encode())
        else:
            self._keep(
                ParseDict(_hex_ids(json.loads(body)), ExportTraceServiceRequest())
                if "json" in self.headers["content-type"]
                else ExportTraceServiceRequest.FromString(body)
            )
            self._answer(200, b"")

    def _keep(self, sent: ExportTraceServiceRequest) -> None:
        for resource in sent.resource_spans:
            self.server.resources.append(attributes_of(resource.resource))
            for scope in resource.scope_spans:
                self.server.spans.update({span.span_id: span for span in scope.spans})

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def _hex_ids(sent: Any) -> Any:
    """OTLP spells ids in JSON as hexadecimal, where protobuf's own JSON has base64."""
    if isinstance(sent, list):
        return [_hex_ids(each) for each in sent]
    if not isinstance(sent, dict):
        return sent
    ids = {"traceId", "spanId", "parentSpanId"}
    return {k: b64encode(bytes.fromhex(v)).decode() if k in ids else _hex_ids(v) for k, v in sent.items()}
