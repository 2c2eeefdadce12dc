"""The GitHub Actions example: its own steps, run in a repository with a base commit and a pull request."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from support.command_line import CommandRun, run_command
from support.eval_project import AGENT, SCORE, write_rows
from support.git_workspace import GitWorkspace
from support.platform_process import FAKE_JOB, PlatformProcess

pytestmark = pytest.mark.slow

WORKFLOW = Path(__file__).parents[2] / "examples" / "ci" / "agent.yml"


@pytest.mark.parametrize(("worse", "verdict"), [(False, "no clear difference"), (True, "worse")])
def test_a_pull_request_is_compared_with_its_base(tmp_path: Path, worse: bool, verdict: str) -> None:
    checkout = tmp_path / "checkout"
    repository = GitWorkspace(checkout)
    repository.write("agent.py", AGENT)
    repository.write("rewards.py", SCORE)
    write_rows(checkout / "data.jsonl", 12)
    base = repository.commit("base")
    repository.write("rewards.py", SCORE.replace("1.0 if", "0.0 if") if worse else SCORE + "\n# clearer\n")
    repository.commit("pull request")

    codes = steps(checkout, tmp_path, base)
    assert codes == {"evaluate both": 0, "compare": int(worse), "say it on the pull request": 0}
    said = (tmp_path / "comment").read_text()
    assert said.startswith(f"### base → pull-request: {verdict}")
    assert "| difference |" in said


def steps(checkout: Path, home: Path, base: str) -> dict[str, int]:
    """Runs every step that has a name; `gh` is a script that keeps what it was given."""
    workflow = yaml.safe_load(WORKFLOW.read_text())
    programs = home / "bin"
    programs.mkdir()
    (programs / "gh").write_text(f"#!/bin/sh\ncat comparison.md > {home}/comment\n")
    (programs / "osmosis").write_text(f'#!/bin/sh\nexec {sys.executable} -m osmosis "$@"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    environ = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(home), "CI": "true"}
    environ |= {"AGENT": "agent:agent", "DATA": "data.jsonl", "SCORE": "rewards:exact", "MODEL": "offline/calculator"}
    environ |= {"BASE": base, "NUMBER": "7"}
    assert set(workflow["env"]) - {"OPENAI_API_KEY", "OSMOSIS"} <= set(environ)
    codes = {}
    for step in workflow["jobs"]["evaluate"]["steps"]:
        if "name" in step:
            assert set(step.get("env", {})) <= {*environ, "GH_TOKEN"}
            done = subprocess.run(
                ["bash", "-e", "-c", step["run"]], cwd=checkout, env=environ, timeout=600, check=False
            )
            codes[step["name"]] = done.returncode
    return codes


PAGE = Path(__file__).parents[2] / "docs" / "scaling.md"
BLOCK = re.compile(r"^```\n(.*?)^```$", re.M | re.S)
ADDRESS = "https://osmosis.example.com"
ELSEWHERE = {
    "--executor slurm": "executors/test_slurm.py",
    "--ray-address": "executors/test_ray.py",
    "--config worker.toml": "executors/test_command.py",
    "eval submit": "cli/test_runs.py, test_shards.py: it needs a workspace that is pushed",
    "osmosis serve": "jobs/test_jobs_training_servers.py",
    "--advertise-url": "the same; and platform/test_processes.py",
    "eval run": "cli/test_runs.py: the same",
}
"""What is run by another test."""


def commands() -> list[str]:
    lines = [line for block in BLOCK.findall(PAGE.read_text()) for line in block.splitlines()]
    found = [line for line in lines if line.startswith("osmosis ")]
    return [line for line in found if not any(word in line for word in ELSEWHERE)]


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[PlatformProcess]:
    """Without a worker of its own, with seven runs that wait."""
    process = PlatformProcess(tmp_path / "data", no_worker="")
    process.start()
    try:
        process.login()
        process.prepare(tmp_path / "checkout")
        for _ in range(7):
            process.submit()
        yield process
    finally:
        process.end()


class Reader:
    """Somebody who types what the page says, in one folder."""

    def __init__(self, platform: PlatformProcess, folder: Path) -> None:
        self.folder, self.url, self.environ = folder, platform.url, platform.login_environ
        (folder / "fake.toml").write_text(f"job_command = {json.dumps(FAKE_JOB.split())}\n")
        self.workers: list[subprocess.Popen[bytes]] = []

    def types(self, line: str) -> None:
        words = shlex.split(line.replace(ADDRESS, self.url))[1:]
        if words[:2] == ["worker", "start"]:
            self.start(words)
            return
        target = None
        if ">" in words:
            words, target = words[: words.index(">")], self.folder / words[-1]
        ran = self.run(*words)
        assert ran.code == 0, f"{line}\n{ran.err}"
        if target is not None:
            target.write_text(ran.out)

    def run(self, *words: str) -> CommandRun:
        scope = () if words[0] in ("worker", "platform") else ("--workspace", "demo")
        return run_command(*scope, *words, cwd=self.folder, environ=self.environ)

    def start(self, words: list[str]) -> None:
        (self.folder / "home").mkdir(exist_ok=True)
        own = {"HOME": str(self.folder / "home"), "OSMOSIS_DATA_DIR": str(self.folder / "home" / "data")}
        command = [sys.executable, "-m", "osmosis", *words, "--config", "fake.toml"]
        with (self.folder / "worker.log").open("ab") as output:
            environ = {**os.environ, **own}
            self.workers.append(subprocess.Popen(command, cwd=self.folder, env=environ, stdout=output, stderr=output))


def test_the_commands_run(platform: PlatformProcess, tmp_path: Path) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    reader = Reader(platform, folder)
    typed = commands()
    assert len(typed) == 4, typed
    try:
        for line in sorted(typed, key=lambda line: "worker start" in line):  # until it comes, the runs wait
            reader.types(line)
        platform.reaches("multiply-1", "finished")
        [seen] = reader.run("worker", "list", "--json").json["items"]
        assert reader.run("worker", "drain", seen["name"]).code == 0
        assert reader.workers[0].wait(120) == 0, (folder / "worker.log").read_text()
    finally:
        for worker in reader.workers:
            worker.kill()
            worker.wait(20)
    assert platform.run("multiply-7")["priority"] == -5
    assert platform.json("GET", "quota")["limits"]["gpus"] == 4
