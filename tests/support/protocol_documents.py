"""The protocol for machines: OpenAPI documents of the rollout server and of the model proxy, made from their apps, and
one JSON Schema with every message. `make docs` writes them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from fastapi.encoders import jsonable_encoder
from fastapi.openapi.models import OpenAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from osmosis.base.jsonable import JsonObject
from osmosis.compat.server import LoopServerSettings, build_loop_server
from osmosis.records.base import Record, describe_fields
from osmosis.records.protocol import messages as wire
from osmosis.records.protocol.v02 import (
    ChatCompletionsRequest,
    CompletionsResponse,
    InitResponse,
    LoopHealth,
    OpenAIFunctionToolSchema,
    RegisterReply,
    RegisterRequest,
    RolloutRequest,
    RolloutResponse,
)
from osmosis.records.sandbox import SandboxAnswer, SandboxOrder
from osmosis.sdk.agent_loop import RolloutAgentLoop, RolloutContext, RolloutResult
from osmosis.serve.client.model_proxy import ModelProxy

SERVER_FILE = "rollout-server.openapi.json"
PROXY_FILE = "traingate.openapi.json"
MESSAGES_FILE = "messages.schema.json"

PROXY_REQUESTS: tuple[type[Record], ...] = (
    ChatCompletionsRequest,
    wire.CompletionCallback,
    wire.GraderCallback,
    RolloutResponse,
    SandboxOrder,
)
MESSAGES: tuple[type[Record], ...] = (
    *PROXY_REQUESTS,
    wire.CallbackReply,
    wire.CancelReply,
    wire.CancelRequest,
    CompletionsResponse,
    wire.ErrorReply,
    wire.ModelErrorReply,
    wire.RolloutAccepted,
    wire.RolloutInit,
    wire.RolloutState04,
    wire.StatusReply,
    InitResponse,
    LoopHealth,
    RegisterReply,
    RegisterRequest,
    RolloutRequest,
    SandboxAnswer,
)


class _Loop(RolloutAgentLoop):
    name = "documented"

    def get_tools(self, request: RolloutRequest) -> list[OpenAIFunctionToolSchema]:
        return []

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        raise NotImplementedError


def documents() -> dict[str, JsonObject]:
    return {SERVER_FILE: server_document(), PROXY_FILE: proxy_document(), MESSAGES_FILE: messages()}


def server_document() -> JsonObject:
    app = build_loop_server(_Loop(), LoopServerSettings(environ={}))
    app.title = "Osmosis rollout server"
    return app.openapi()


def proxy_document() -> JsonObject:
    app = ModelProxy(None).app  # type: ignore[arg-type]  # nobody asks its model
    document = get_openapi(title=app.title, version=app.version, routes=app.routes, separate_input_output_schemas=False)
    document["components"]["schemas"].update(_definitions(PROXY_REQUESTS, "#/components/schemas/{model}"))
    encoded: JsonObject = jsonable_encoder(OpenAPI(**document), by_alias=True, exclude_none=True)
    return encoded


def messages() -> JsonObject:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Messages of the remote-rollout protocol",
        "$defs": _definitions(MESSAGES, "#/$defs/{model}"),
    }


def _definitions(shapes: Sequence[type[Record]], ref_template: str) -> JsonObject:
    ordered = sorted(shapes, key=lambda shape: shape.__name__)
    _, schema = models_json_schema(
        [(describe_fields(shape), "validation") for shape in ordered], ref_template=ref_template
    )
    definitions: JsonObject = schema["$defs"]
    return definitions


def text_of(document: JsonObject) -> str:
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def main(argv: Sequence[str]) -> int:
    folder = Path(argv[0] if argv else "docs/protocol")
    folder.mkdir(parents=True, exist_ok=True)
    for name, document in documents().items():
        (folder / name).write_text(text_of(document), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
