"""The published schemas are the code's: regenerated and compared, and the endpoint tables are the routes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from osmosis.records import wire, wire02
from osmosis.serve import schemas
from osmosis.serve.server.app import create_rollout_server
from osmosis.serve.server.v02 import create_app

from .support import OneCall, ScriptedModel, backend, open_gate
from .test_server02 import Adds

FOLDER = Path(__file__).parents[2] / "docs" / "protocol"
PROTOCOL = FOLDER.parent / "protocol.md"


@pytest.mark.parametrize("name", [schemas.SERVER_FILE, schemas.GATE_FILE, schemas.MESSAGES_FILE])
def test_the_committed_documents_are_what_the_code_says(name: str) -> None:
    made = schemas.text_of(schemas.documents()[name])
    assert (FOLDER / name).read_text(encoding="utf-8") == made, "run: python -m osmosis.serve.schemas docs/protocol"


async def test_the_table_of_endpoints_is_the_routes(tmp_path: Path) -> None:
    table = {(endpoint.method, endpoint.path) for endpoint in schemas.SERVER}
    assert _served(create_app(Adds(), environ={})) == table
    assert _documented(create_app(Adds(), environ={})) == table
    later = _served(create_rollout_server(backend(OneCall, root=tmp_path), configure_logging=False, environ={}))
    assert later == {(m, p) for m, p in table if not p.startswith(("/v1", "/platform"))}
    async with open_gate(ScriptedModel()) as gate:
        assert gate._runner is not None
        resources = {
            (route.method.lower(), route.resource.canonical)
            for route in gate._runner.app.router.routes()
            if route.method != "HEAD" and route.resource is not None
        }
    assert resources == {(endpoint.method, endpoint.path) for endpoint in schemas.GATE}


def test_every_wire_message_is_published_and_explained() -> None:
    published = set(schemas.documents()[schemas.MESSAGES_FILE]["$defs"])
    text = PROTOCOL.read_text(encoding="utf-8")
    for shape in (
        wire.RolloutInit,
        wire.RolloutAccepted,
        wire.RolloutState04,
        wire.CompletionCallback,
        wire.GraderCallback,
        wire.CancelRequest,
        wire02.RolloutRequest,
        wire02.InitResponse,
        wire02.RolloutResponse,
    ):
        assert shape.__name__ in published
        for name in shape.model_fields:
            assert f"`{name}`" in text, f"docs/protocol.md does not mention {shape.__name__}.{name}"


def _documented(app: Any) -> set[tuple[str, str]]:
    return {(method, path) for path, operations in app.openapi()["paths"].items() for method in operations}


def _served(app: Any) -> set[tuple[str, str]]:
    own = {"/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc"}
    return {
        (method.lower(), route.path)
        for route in app.routes
        for method in route.methods
        if method != "HEAD" and route.path not in own
    }
