"""The guide's rollout, as docs/sdk.md prints it, does what the guide says an entrypoint must do."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import httpx

from osmosis.jobs.entrypoint import look_at
from osmosis.serve.drive.process import RolloutServerProcess

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "sdk.md"


async def test_the_guides_main_py_serves_on_the_port_it_is_given(tmp_path: Path) -> None:
    files = re.findall(r"```\w+\n# file: (\S+)\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.S)
    assert [name for name, _ in files] == ["main.py", "pyproject.toml"]
    for name, text in files:
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert look_at((tmp_path / "main.py").read_text(encoding="utf-8")).kind == "script"

    server = RolloutServerProcess([sys.executable, "main.py"], tmp_path, os.environ, log=print)
    url = await server.start()
    try:
        async with httpx.AsyncClient(trust_env=False) as client:
            health = (await client.get(f"{url}/health")).json()
        assert health["concurrency"]["max_concurrent"] == 64
    finally:
        await server.stop()
