"""What docs/sdk.md and docs/protocol.md print runs: the rollout on its port, and the client that drives it."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from osmosis.jobs.entrypoint import look_at
from osmosis.serve.drive.process import RolloutServerProcess
from osmosis.testing.endpoint import ModelEndpoint, text_reply

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
    assert look_at((tmp_path / "main.py").read_text(encoding="utf-8")).kind == "script"

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
