"""The protocol as machines read it: OpenAPI documents of the rollout server and of the model proxy, and one JSON Schema
with every message, made from the endpoints as they are declared where they are served.
`python -m osmosis.serve.schemas docs/protocol` writes them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic.json_schema import models_json_schema

from osmosis.records.base import Record
from osmosis.records.describe import described
from osmosis.records.wire import ErrorReply, ModelErrorReply
from osmosis.records.wire02 import RegisterReply, RegisterRequest

from .drive import traingate
from .endpoints import openapi
from .server import v02, v03

SERVER_FILE = "rollout-server.openapi.json"
GATE_FILE = "traingate.openapi.json"
MESSAGES_FILE = "messages.schema.json"

SERVER = (*v02.ENDPOINTS, *(one for one in v03.ENDPOINTS if one is not v03.HEALTH))
"""Of a server with an agent loop, which has them all."""


def documents() -> dict[str, dict[str, Any]]:
    """Every document by its file name."""
    return {
        SERVER_FILE: openapi("Osmosis rollout server", SERVER, ErrorReply),
        GATE_FILE: openapi("Osmosis model proxy", traingate.ENDPOINTS, ModelErrorReply),
        MESSAGES_FILE: messages(),
    }


def messages() -> dict[str, Any]:
    """One JSON Schema whose `$defs` are all messages of all generations."""
    shapes: set[type[Record]] = {RegisterRequest, RegisterReply, ErrorReply, ModelErrorReply}
    for endpoint in (*SERVER, *traingate.ENDPOINTS):
        shapes |= {shape for shape in (endpoint.request, endpoint.response) if shape is not None}
    ordered = sorted(shapes, key=lambda shape: shape.__name__)
    _, made = models_json_schema(
        [(described(shape), "validation") for shape in ordered], ref_template="#/$defs/{model}"
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Messages of the remote-rollout protocol",
        "$defs": made["$defs"],
    }


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
