"""`harbor:` as an agent with its rows, with the real library; `test_harbor_backend.py` runs this file where it is."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
SANDBOX = "environment=osmosis.testing.harbor_environment:ProcessEnvironment"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("harbor") is None, reason="run by test_in_an_environment_with_harbor"),
]


def make_task(folder: Path, word: str) -> None:
    files = {
        "task.toml": 'version = "1.0"\n',
        "instruction.md": f"Write {word} into /app/answer.txt.\n",
        "environment/Dockerfile": "FROM python:3.12-slim\n",
        "solution/solve.sh": f"#!/bin/sh\necho {word} > /app/answer.txt\n",
        "tests/test.sh": f"#!/bin/sh\ngrep -q {word} /app/answer.txt && echo 1 > $OUT || echo 0 > $OUT\n".replace(
            "$OUT", "/logs/verifier/reward.txt"
        ),
    }
    for name, text in files.items():
        (folder / word / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / word / name).write_text(text)


def run_osmosis(folder: Path, *words: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "osmosis", *words]
    environ = {**os.environ, "PYTHONPATH": f"{HERE.parents[2] / 'src'}:{HERE / 'sandboxed'}"}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def rollouts_of(folder: Path, name: str, *flags: str) -> list[dict[str, object]]:
    run_osmosis(folder, "eval", *flags, "--model", "offline/echo", "--name", name)
    run_osmosis(folder, "eval", "export", name, "--format", "jsonl", "-o", f"{name}.jsonl")
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def test_a_folder_of_tasks_is_agent_grader_and_rows(tmp_path: Path) -> None:
    make_task(tmp_path / "tasks", "red")
    make_task(tmp_path / "tasks", "blue")
    for agent, reward in (("oracle", 1.0), ("nop", 0.0)):
        rollouts = rollouts_of(tmp_path, agent, "-m", f"harbor:tasks?agent={agent}&{SANDBOX}")
        assert [(row["row_key"], row["reward"]) for row in rollouts] == [("blue", reward), ("red", reward)]
    assert run_osmosis(tmp_path, "dataset", "from", "harbor:tasks", "-o", "rows.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["user_prompt"] for row in rows] == [
        "Write blue into /app/answer.txt.\n",
        "Write red into /app/answer.txt.\n",
    ]
    assert all(row["metadata"]["digest"].startswith("sha256:") for row in rows)
    refused = run_osmosis(tmp_path, "eval", "-m", "harbor:tasks?agents=x", "--model", "offline/echo", code=1)
    assert "no option 'agents'" in refused


def test_a_version_of_a_registry_is_downloaded_and_its_agent_asks_our_model(tmp_path: Path) -> None:
    make_task(tmp_path / "elsewhere", "red")
    task = {"name": "red", "path": str(tmp_path / "elsewhere" / "red")}
    registry = [{"name": "colours", "version": "1.0", "description": "", "tasks": [task]}]
    (tmp_path / "registry.json").write_text(json.dumps(registry))
    name = f"harbor:colours@1.0?registry=registry.json&agent=workflows:Ask&{SANDBOX}"
    (rollout,) = rollouts_of(tmp_path, "asked", "-m", name)
    assert rollout["prompt_tokens"], "the calls went past the model's proxy"
    assert (tmp_path / ".osmosis/harbor/colours@1.0/red/task.toml").is_file()
    assert "NAME@VERSION" in run_osmosis(tmp_path, "eval", "-m", "harbor:colours", "--model", "offline/echo", code=1)
