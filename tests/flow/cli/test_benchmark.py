"""`osmosis benchmark` from a config to its figures, against a platform with its worker."""

import csv
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.command_line import CommandRun, run_command
from support.platform_process import PlatformProcess

pytestmark = pytest.mark.slow

CONFIG = """
[experiment]
benchmark = "multiply"

[[agents]]
model = { type = "provider", model = "offline/calculator" }

[[agents]]
harness = "codex"
model = { type = "hosted", base_model = "tiny", base_url = "http://127.0.0.1:9" }
"""
GIT = ("-c", "user.name=T", "-c", "user.email=t@localhost")


def test_a_benchmark_of_two_agents(tmp_path: Path) -> None:
    platform = PlatformProcess(tmp_path / "data")
    platform.start()
    try:
        platform.login()
        folder = tmp_path / "workspace"
        platform.prepare(folder)
        url = platform.json("GET", "workspaces")["workspaces"][0]["connected_repo"]["url"]
        origin = url.replace("://", f"://git:{platform.token}@")

        def run(*words: str) -> CommandRun:
            return run_command(*words, "--json", cwd=folder, environ=platform.login_environ)

        def succeed(*words: str) -> Any:
            done = run(*words)
            assert done.code == 0, done.out + done.err
            return done.json

        for name in ("configs/benchmark", "data"):
            (folder / name).mkdir(parents=True)
        rows = [{"user_prompt": "q", "ground_truth": "1", "task": f"t{n}"} for n in range(4)]
        (folder / "data" / "multiply.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        config = folder / "configs" / "benchmark" / "multiply.toml"
        config.write_text(CONFIG)
        checked = run("check", "configs/benchmark/multiply.toml")
        assert [item["where"].partition(": ")[2] for item in checked.json["items"]] == ["agents.1.model.base_url"]
        assert run("benchmark", "submit", "multiply", "--yes").error["code"] == "VALIDATION"
        config.write_text(
            CONFIG.partition('model = { type = "hosted"')[0] + 'model = { type = "provider", model = "offline/echo" }\n'
        )
        for args in (
            ["remote", "add", "origin", origin],
            ["add", "-A"],
            [*GIT, "commit", "-qm", "b"],
            ["push", "-qu", "origin", "main"],
        ):
            subprocess.run(["git", *args], cwd=folder, check=True)
        assert "there is no benchmark" in run("benchmark", "submit", "multiply", "--yes", "--wait-sync").err
        succeed("dataset", "upload", "data/multiply.jsonl", "--yes")
        assert [row["source_ref"] for row in succeed("benchmark", "list")["items"]] == ["multiply"]
        submitted = succeed("benchmark", "submit", "multiply", "--yes", "--wait-sync", "--wait")["resource"]
        name = submitted["name"]
        shown = succeed("benchmark", "runs", "show", "latest")["data"]
        assert (shown["benchmark_run"]["name"], shown["benchmark_run"]["status"]) == (name, "finished")
        assert [agent["harness"] for agent in shown["agents"]] == [None, "codex"]
        leaderboard = succeed("benchmark", "show", "multiply")["data"]["leaderboard"]
        assert [agent["run_name"] for agent in leaderboard] == [f"{name}-agent-1", f"{name}-agent-2"]
        assert [row["name"] for row in succeed("benchmark", "runs", "list")["items"]] == [name]
        assert succeed("benchmark", "runs", "logs", name)["items"]
        assert succeed("benchmark", "runs", "download", name)["operation"] == "benchmark.download"
        results = folder / ".osmosis" / "benchmarks" / name / "results.csv"
        assert len(list(csv.DictReader(results.read_text().splitlines()))) == 8
        assert "is finished already" in succeed("benchmark", "runs", "stop", name, "--yes")["message"]
    finally:
        platform.end()
