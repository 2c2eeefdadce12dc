"""The published schemas are the code's: regenerated and compared, and what is served is what is declared."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from osmosis.records import loop_request, wire, wire02
from osmosis.serve import schemas
from osmosis.serve.drive import traingate
from osmosis.serve.endpoints import DeclaredEndpoint
from osmosis.serve.server import v03
from osmosis.serve.server.app import create_rollout_server
from osmosis.serve.server.v02 import create_app

from .support import OneCall, ScriptedModel, backend, open_gate
from .test_v02 import Adds

FOLDER = Path(__file__).parents[2] / "docs" / "protocol"
PROTOCOL = FOLDER.parent / "protocol.md"


@pytest.mark.parametrize("name", [schemas.SERVER_FILE, schemas.GATE_FILE, schemas.MESSAGES_FILE])
def test_the_committed_documents_are_what_the_code_says(name: str) -> None:
    made = schemas.text_of(schemas.documents()[name])
    assert (FOLDER / name).read_text(encoding="utf-8") == made, "run: python -m osmosis.serve.schemas docs/protocol"


async def test_servers_serve_and_document_what_is_declared(tmp_path: Path) -> None:
    """A route that is not declared would be missing in the documents."""
    declared = _named(schemas.SERVER)
    with_loop = create_app(Adds(), environ={})
    assert _served(with_loop) == _documented(with_loop) == declared
    later = create_rollout_server(backend(OneCall, root=tmp_path), configure_logging=False, environ={})
    assert _served(later) == _documented(later) == _named(v03.ENDPOINTS)
    async with open_gate(ScriptedModel()) as gate:
        assert gate._runner is not None
        resources = {
            (route.method.lower(), route.resource.canonical)
            for route in gate._runner.app.router.routes()
            if route.method != "HEAD" and route.resource is not None
        }
    assert resources == _named(traingate.ENDPOINTS)


def test_a_server_documents_each_endpoint_with_its_records_and_its_bearer(tmp_path: Path) -> None:
    app = create_rollout_server(backend(OneCall, root=tmp_path), configure_logging=False, environ={})

    @app.get("/of/the/author")
    async def _own() -> str: ...

    document = app.openapi()
    start = document["paths"]["/rollout"]["post"]
    assert _ref(start["requestBody"]) == "#/components/schemas/RolloutInit"
    assert _ref(start["responses"]["202"]) == "#/components/schemas/RolloutAccepted"
    assert _ref(start["responses"]["429"]) == "#/components/schemas/ErrorReply"
    assert start["security"] == [{"serverKey": []}]
    read = document["paths"]["/rollout/{rollout_id}/result"]["get"]
    assert [(one["in"], one["name"]) for one in read["parameters"]] == [
        ("path", "rollout_id"),
        ("header", wire.LEASE_HEADER),
    ]
    assert "422" not in document["paths"]["/health"]["get"]["responses"]
    assert "security" not in document["paths"]["/health"]["get"]
    fields = document["components"]["schemas"]["RolloutInit"]["properties"]
    assert fields["label"]["description"] == "The row's ground truth."
    assert "/of/the/author" in document["paths"]


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
        loop_request.RolloutRequest,
        wire02.InitResponse,
        wire02.RolloutResponse,
    ):
        assert shape.__name__ in published
        for name in shape.model_fields:
            assert f"`{name}`" in text, f"docs/protocol.md does not mention {shape.__name__}.{name}"


def _ref(part: dict[str, Any]) -> str:
    found: str = part["content"]["application/json"]["schema"]["$ref"]
    return found


def _named(endpoints: Iterable[DeclaredEndpoint]) -> set[tuple[str, str]]:
    return {(endpoint.method.lower(), endpoint.path) for endpoint in endpoints}


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
