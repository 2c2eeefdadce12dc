"""What a command loads: only what it uses. Each case is a fresh process that lists its modules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.flow

VENDORS = {
    "aiohttp", "alembic", "copier", "cryptography", "fastapi", "git", "keyring", "litellm", "openai",
    "prompt_toolkit", "pyarrow", "questionary", "sqlalchemy", "starlette", "tomlkit", "torch", "transformers",
    "uvicorn", "yaml",
}  # fmt: skip
PROBE = """
import json, sys
from osmosis.cli import main
code = main(sys.argv[1:])
names = sorted({name.partition(".")[0] for name in sys.modules})
print("\\n@@" + json.dumps([code, names]))
"""


def modules(cwd: Path, *words: str) -> tuple[int, set[str]]:
    environ = {"PATH": os.environ["PATH"], "OSMOSIS_CONFIG_DIR": str(cwd / "c"), "OSMOSIS_DATA_DIR": str(cwd / "d")}
    command = [sys.executable, "-c", PROBE, *words]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environ, check=True)
    code, names = json.loads(ran.stdout.rpartition("@@")[2])
    return code, set(names)


@pytest.mark.parametrize(
    ("words", "also_not"),
    [
        (["--version"], {"typer", "rich", "httpx", "pydantic", "dotenv"}),
        (["--help"], {"typer", "rich", "httpx", "pydantic"}),
        (["eval", "--help"], {"typer", "rich", "httpx", "pydantic"}),
        (["dataset", "--help"], {"httpx"}),
        (["whoami"], {"pygments"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_no_vendor_library_is_loaded(tmp_path: Path, words: list[str], also_not: set[str]) -> None:
    _, loaded = modules(tmp_path, *words)
    assert not loaded & (VENDORS | also_not)


@pytest.mark.parametrize("template", ["empty", "calculator"])
def test_a_config_that_runs_here_loads_no_web_framework(tmp_path: Path, template: str) -> None:
    """The template's `main.py` makes its server and its workflow may ask for a URL: neither is wanted here."""
    code, _ = modules(tmp_path, "init", "demo", "--template", template, "--no-platform")
    assert code == 0
    code, loaded = modules(tmp_path / "demo", "eval", "run", template, "--limit", "2", "--name", "one")
    report = json.loads((tmp_path / "demo" / ".osmosis" / "runs" / "one" / "report.json").read_text())
    assert code == 0
    assert report["succeeded"] == report["total"] > 0
    assert not loaded & {"fastapi", "starlette", "uvicorn", "aiohttp", "httpx", "rich", "platformdirs"}


LOOP = """
from osmosis import RolloutAgentLoop

class Agent(RolloutAgentLoop):
    name = "one"
    def get_tools(self, request):
        return []
    async def run(self, ctx):
        answer = await ctx.chat(ctx.request.messages)
        return ctx.complete([*ctx.request.messages, answer.message])

agent = Agent()

def score(solution_str, ground_truth, extra_info=None):
    return 1.0
"""
WHOLE = """
import json, sys
from osmosis.cli import main
code = main(sys.argv[1:])
from pydantic.plugin import _loader
print("\\n@@" + json.dumps([code, _loader._plugins is not None, sorted(sys.modules)]))
"""


def test_an_evaluation_loads_no_server_and_looks_for_no_plugins(tmp_path: Path) -> None:
    """From the command line to the report, whatever threads it has started by then."""
    (tmp_path / "one.py").write_text(LOOP)
    rows = [{"system_prompt": "Add.", "user_prompt": f"{n} + 1", "ground_truth": str(n + 1)} for n in range(4)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    line = "eval -m one:agent -d rows.jsonl --eval-fn one:score --model offline/calculator -o o.json"
    environ = {"PATH": os.environ["PATH"], "OSMOSIS_CONFIG_DIR": str(tmp_path / "c")}
    command = [sys.executable, "-c", WHOLE, *line.split()]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environ, check=True)
    code, looked, loaded = json.loads(ran.stdout.rpartition("@@")[2])
    assert code == 0, ran.stdout + ran.stderr
    assert not looked
    servers = {"osmosis.records.wire", "osmosis.records.wire02", "osmosis.engine.workflow_rollout"}
    assert not {"rich", "platformdirs", "aiohttp", *servers} & set(loaded)
