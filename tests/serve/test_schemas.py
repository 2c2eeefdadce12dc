"""The documents are the code's: schemas regenerated and compared, examples of the guide and the protocol run."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from osmosis.jobs.prepare.entrypoints import classify_entrypoint
from osmosis.records.protocol import messages as wire, v02 as wire02
from osmosis.serve.server.app import create_rollout_server
from osmosis.serve.server_process import RolloutServerProcess
from support import protocol_documents as schemas
from support.endpoint import ModelEndpoint, text_reply

from .support import OneCall, backend

FOLDER = Path(__file__).parents[2] / "docs" / "protocol"
PROTOCOL = FOLDER.parent / "protocol.md"


@pytest.mark.parametrize("name", [schemas.SERVER_FILE, schemas.PROXY_FILE, schemas.MESSAGES_FILE])
def test_the_committed_documents_are_what_the_code_says(name: str) -> None:
    made = schemas.text_of(schemas.documents()[name])
    assert (FOLDER / name).read_text(encoding="utf-8") == made, "run: make docs"


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
    assert fields["rollout_id"]["description"] == "One path segment; required when polling."
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
        wire02.RolloutRequest,
        wire02.InitResponse,
        wire02.RolloutResponse,
    ):
        assert shape.__name__ in published
        for name in shape.model_fields:
            assert f"`{name}`" in text, f"docs/protocol.md does not mention {shape.__name__}.{name}"


def _ref(part: dict[str, Any]) -> str:
    found: str = part["content"]["application/json"]["schema"]["$ref"]
    return found


DOCS = Path(__file__).resolve().parents[2] / "docs"
GUIDE = DOCS / "sdk.md"


@pytest.mark.usefixtures("isolated")
def test_the_tool_that_runs_code_prints_what_it_says(tmp_path: Path) -> None:
    [code] = re.findall(r"```python\n# file: sandboxed.py\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.S)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "42\n['program.py']\n[ended: limit of time]\n"


async def test_the_main_py_serves_on_the_port_it_is_given_and_is_driven(tmp_path: Path) -> None:
    files = re.findall(r"```\w+\n# file: (\S+)\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.S)
    assert [name for name, _ in files] == ["main.py", "pyproject.toml", "sandboxed.py"]
    for name, text in files:
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert classify_entrypoint((tmp_path / "main.py").read_text(encoding="utf-8")).kind == "script"

    server = RolloutServerProcess([sys.executable, "main.py"], tmp_path, os.environ, log=print)
    url = await server.start()
    try:
        async with httpx.AsyncClient(trust_env=False) as client:
            health = (await client.get(f"{url}/health")).json()
        assert health["concurrency"]["max_concurrent"] == 64

        [code] = re.findall(r"```python\n(.*?)```", (DOCS / "protocol.md").read_text(encoding="utf-8"), re.S)
        scope: dict[str, Any] = {}
        exec(compile(code, "protocol.md", "exec", dont_inherit=True), scope)
        with ModelEndpoint(lambda body, number: text_reply("It is 42")) as model:
            done = await asyncio.to_thread(scope["run_one"], url, model.url, "key", "What is 6 * 7?", "42")
        assert (done["status"], done["sample"]["reward"]) == ("success", 1.0)
    finally:
        await server.stop()
