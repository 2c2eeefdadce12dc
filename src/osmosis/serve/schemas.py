"""The protocol as machines read it: OpenAPI documents of the rollout server and of the train gate, and one JSON Schema
with every message. Made from the records that the code itself validates with and from the table of endpoints below,
which a test compares with the routes; `python -m osmosis.serve.schemas docs/protocol` writes them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field
from pydantic.json_schema import models_json_schema

from osmosis.records import wire, wire02
from osmosis.records.base import Record
from osmosis.records.describe import described

SERVER_FILE = "rollout-server.openapi.json"
GATE_FILE = "traingate.openapi.json"
MESSAGES_FILE = "messages.schema.json"


class Problem(Record):
    """The body of every answer of the rollout server that is no success."""

    detail: Any
    """A sentence, or for 422 the list of what is wrong with the body."""


class CancelReply(Record):
    """What each named rollout was."""

    dispositions: dict[str, str]
    """`cancelled_queued`, `cancelled_running` or `not_found` by rollout id."""


class StatusReply(Record):
    rollout_id: str
    status: wire.RolloutState


class LoopHealth(wire.ServerHealth):
    """`GET /health` of a server with an agent loop: generation 0.2's keys beside the later ones."""

    agent_loop: str
    active_rollouts: int
    """Queued and running."""
    completed_rollouts: int


class Acknowledged(Record):
    """A callback was taken. `trajectory` tells the rollout what only the gate knows."""

    status: str = "ok"
    trajectory: dict[str, Any] | None = None
    """`model_name` and `samples.<id>.llm_call_metrics`: tokens and cost of each model call."""


class ModelProblem(Record):
    """An error in the shape that OpenAI clients read."""

    error: dict[str, Any]
    """`message`, `type`, `code` (the category of the failure)."""


class RegisterRequest(Record):
    """`POST {platform}/api/cli/rollout-server/register`."""

    host: str
    port: int
    agent_loop_name: str
    api_key: str | None = None


class RegisterReply(Record):
    id: str
    status: str
    """`healthy`, or why not."""
    health_check_result: dict[str, Any] | None = None
    """`server_info` or `error`."""


class ChatRequest(wire02.CompletionsRequest):
    """`POST .../chat/completions` of the train gate: any OpenAI parameter is forwarded; `n` must be 1."""

    rollout_id: str = Field(default="", max_length=256)
    """Only for generation 0.2, whose URL does not name the rollout."""
    tools: list[dict[str, Any]] | None = None
    stream: bool = False
    """Server-sent events with text and tool-call deltas, then `[DONE]`."""


@dataclass(frozen=True)
class Endpoint:
    """One row of the protocol. `auth` is the security scheme, None = open."""

    method: str
    path: str
    summary: str
    request: type[Record] | None = None
    response: type[Record] | None = None
    status: int = 200
    errors: tuple[int, ...] = ()
    auth: str | None = "serverKey"
    headers: tuple[str, ...] = ()


SERVER: Sequence[Endpoint] = (
    Endpoint("post", "/v1/rollout/init", "0.2: start a rollout; repeated requests get the first answer",
             wire02.RolloutRequest, wire02.InitResponse, 202, (401, 409, 413, 422, 429, 500, 503)),
    Endpoint("get", "/platform/health", "0.2: health for a registered platform; 404 without an API key",
             None, LoopHealth, 200, (401, 404)),
    Endpoint("post", "/rollout", "Start a rollout: 0.3 with callback URLs (202 `{}`), else 0.4 and then polled",
             wire.RolloutInit, wire.RolloutAccepted, 202, (401, 409, 413, 422, 429, 503)),
    Endpoint("get", "/rollout/{rollout_id}/result", "0.4: wait for a change of state; renews the lease",
             None, wire.RolloutState04, 200, (401, 403, 404), headers=(wire.LEASE_HEADER,)),
    Endpoint("get", "/rollout/{rollout_id}/status", "State of a rollout; `unknown` when it is not here",
             None, StatusReply, 200, (401, 422)),
    Endpoint("post", "/rollout/cancel", "Cancel by ids, by prefix or all", wire.CancelRequest, CancelReply, 200,
             (401, 422)),
    Endpoint("get", "/health", "Health; which keys it has tells the generation", None, LoopHealth, 200, (), None),
)  # fmt: skip
GATE: Sequence[Endpoint] = (
    Endpoint("post", "/v1/rollouts/{rollout_id}/chat/completions", "A model call of a rollout, plain or streamed",
             ChatRequest, wire02.CompletionsResponse, 200, (400, 401, 404, 424), "rolloutKey"),
    Endpoint("post", "/v1/rollouts/{rollout_id}/completion", "0.3: the workflow ended",
             wire.CompletionCallback, Acknowledged, 200, (401, 404, 422), "callbackKey"),
    Endpoint("post", "/v1/rollouts/{rollout_id}/grader", "0.3: the grader ended",
             wire.GraderCallback, Acknowledged, 200, (401, 404, 422), "callbackKey"),
    Endpoint("post", "/v1/chat/completions", "0.2: a model call; the body names the rollout",
             ChatRequest, wire02.CompletionsResponse, 200, (400, 401, 404, 424), "rolloutKey"),
    Endpoint("post", "/v1/rollout/completed", "0.2: the terminal result",
             wire02.RolloutResponse, Acknowledged, 200, (401, 404, 422), "rolloutKey"),
    Endpoint("get", "/health", "Health", None, None, 200, (), None),
)  # fmt: skip
_EXTRA_MESSAGES: tuple[type[Record], ...] = (RegisterRequest, RegisterReply)
_REASONS = {
    400: "The model refused the request, or it cannot be forwarded",
    401: "The bearer is missing or wrong",
    403: "The lease is not this rollout's",
    404: "Not here",
    409: "The id or key is in use for something else",
    413: "The body is too large",
    422: "The body is not valid",
    424: "The model failed, after the gate's own retries",
    429: "The queue is full; see Retry-After",
    500: "The agent's get_tools raised",
    503: "The server is shutting down; see Retry-After",
}
_SCHEMES = {
    "serverKey": "The rollout server's API key, when it has one.",
    "rolloutKey": "The bearer of one rollout's model endpoint: `llm_api_key`, or `api_key` in generation 0.2.",
    "callbackKey": "The bearer of one rollout's callbacks: `controller_api_key`.",
}


def documents() -> dict[str, dict[str, Any]]:
    """Every document by its file name."""
    return {
        SERVER_FILE: openapi("Osmosis rollout server", SERVER, Problem),
        GATE_FILE: openapi("Osmosis train gate", GATE, ModelProblem),
        MESSAGES_FILE: messages(),
    }


def document_of(title: str, paths: Iterable[str]) -> dict[str, Any]:
    """The OpenAPI document of one rollout server, which may serve only some of the paths."""
    served = set(paths)
    return openapi(title, [endpoint for endpoint in SERVER if endpoint.path in served], Problem)


def openapi(title: str, endpoints: Sequence[Endpoint], problem: type[Record]) -> dict[str, Any]:
    """An OpenAPI 3.1 document."""
    shapes = [shape for e in endpoints for shape in (e.request, e.response) if shape is not None] + [problem]
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method] = _operation(endpoint, problem)
    used = sorted({endpoint.auth for endpoint in endpoints if endpoint.auth})
    schemes = {name: {"type": "http", "scheme": "bearer", "description": _SCHEMES[name]} for name in used}
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": "1"},
        "paths": paths,
        "components": {"schemas": _schemas(shapes, "#/components/schemas/{model}"), "securitySchemes": schemes},
    }


def messages() -> dict[str, Any]:
    """One JSON Schema whose `$defs` are all messages of all generations."""
    shapes: set[type[Record]] = set()
    for endpoint in (*SERVER, *GATE):
        shapes |= {shape for shape in (endpoint.request, endpoint.response) if shape is not None}
    shapes |= {*_EXTRA_MESSAGES, Problem, ModelProblem}
    ordered = sorted(shapes, key=lambda shape: shape.__name__)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Messages of the remote-rollout protocol",
        "$defs": _schemas(ordered, "#/$defs/{model}"),
    }


def _schemas(shapes: Iterable[type[Record]], template: str) -> dict[str, Any]:
    unique = list(dict.fromkeys(shapes))
    _, made = models_json_schema([(described(shape), "validation") for shape in unique], ref_template=template)
    defs: dict[str, Any] = made["$defs"]
    return defs


def _operation(endpoint: Endpoint, problem: type[Record]) -> dict[str, Any]:
    responses = {str(endpoint.status): {"description": "Success", **_content(endpoint.response)}}
    for status in endpoint.errors:
        responses[str(status)] = {"description": _REASONS[status], **_content(problem)}
    operation: dict[str, Any] = {"summary": endpoint.summary, "responses": responses}
    parameters = [_parameter("path", "rollout_id")] if "{rollout_id}" in endpoint.path else []
    parameters += [_parameter("header", name) for name in endpoint.headers]
    if parameters:
        operation["parameters"] = parameters
    if endpoint.request is not None:
        operation["requestBody"] = {"required": True, **_content(endpoint.request)}
    if endpoint.auth:
        operation["security"] = [{endpoint.auth: []}]
    return operation


def _parameter(where: str, name: str) -> dict[str, Any]:
    return {"in": where, "name": name, "required": True, "schema": {"type": "string"}}


def _content(shape: type[Record] | None) -> dict[str, Any]:
    if shape is None:
        return {}
    return {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{shape.__name__}"}}}}


def text_of(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def main(argv: Sequence[str]) -> int:
    folder = Path(argv[0] if argv else "docs/protocol")
    folder.mkdir(parents=True, exist_ok=True)
    for name, document in documents().items():
        (folder / name).write_text(text_of(document), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
