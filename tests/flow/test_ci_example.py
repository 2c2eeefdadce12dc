"""The GitHub Actions example: its own steps, run in a repository with a base commit and a pull request."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from osmosis.testing.eval_project import AGENT, SCORE, write_rows
from osmosis.testing.git_workspace import GitWorkspace

pytestmark = pytest.mark.flow

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
    assert set(workflow["env"]) - {"OPENAI_API_KEY"} <= set(environ)
    codes = {}
    for step in workflow["jobs"]["evaluate"]["steps"]:
        if "name" in step:
            assert set(step.get("env", {})) <= {*environ, "GH_TOKEN"}
            done = subprocess.run(
                ["bash", "-e", "-c", step["run"]], cwd=checkout, env=environ, timeout=120, check=False
            )
            codes[step["name"]] = done.returncode
    return codes
