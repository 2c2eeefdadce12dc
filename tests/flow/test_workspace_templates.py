"""Every template, rendered, run as the platform runs it (its own server process) and scored with its stand-in model."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from osmosis.base.installation import build_wheel
from osmosis.jobs.context import JobLog
from osmosis.jobs.prepare.environment import Builder
from osmosis.jobs.prepare.project import read_project
from osmosis.records.run.report import Report
from osmosis.workspace.doctor import find_uv
from osmosis.workspace.templates import list_templates, render_rollout, render_workspace
from support.rollout_run import run_rollout

pytestmark = pytest.mark.slow

INSTALLED_HERE = ["empty", "calculator", "writing", "mcp", "train"]
OF_THEIR_OWN = ["multiply", "openai-agents", "strands"]


def rendered(root: Path, name: str) -> Path:
    render_workspace(root, {"name": "demo"})
    render_rollout("mine", name, root)
    return root


def check_report(name: str, report: Report, said: str) -> None:
    assert report.failed == 0, said
    assert report.completed == report.total > 0
    reward = report.scores[0]
    if name in ("empty", "writing"):
        assert reward.mean > 0.5
    else:
        # The stand-in calculator is wrong on purpose now and then, so a score that sees nothing would show.
        assert 0 < reward.pass_rate < 1


def test_every_template_is_run_by_one_of_these_tests() -> None:
    assert {t.name for t in list_templates()} == {*INSTALLED_HERE, *OF_THEIR_OWN, "harbor"}  # run by tests/flow/harbor


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Environments and the wheel of this installation, made once."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.network
@pytest.mark.parametrize("name", [*INSTALLED_HERE, *OF_THEIR_OWN])
def test_it_validates_and_answers_without_a_name(tmp_path: Path, cache: Path, name: str) -> None:
    """`osmosis check` and `osmosis test` find the one rollout, its environment, its data and its model."""
    root = rendered(tmp_path / "demo", name)
    environ = {**os.environ, "OSMOSIS_CACHE_DIR": str(cache), "OSMOSIS_CONFIG_DIR": str(tmp_path / "config")}

    def said(*words: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "osmosis", *words, "--json"]
        done = subprocess.run(command, cwd=root, env=environ, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        body: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return body

    assert said("validate")["data"]["valid"] is True
    summary = said("test", "--limit", "2")["data"]["summary"]
    assert (summary["total"], summary["passed"], summary["failed"]) == (2, 2, 0)


@pytest.mark.parametrize("name", INSTALLED_HERE)
async def test_with_what_is_installed_here(tmp_path: Path, name: str) -> None:
    root = rendered(tmp_path / "demo", name)
    check_report(name, *await run_rollout(root, "mine", Path(sys.executable)))


@pytest.mark.network
@pytest.mark.parametrize("name", OF_THEIR_OWN)
async def test_in_an_environment_of_its_own(tmp_path: Path, cache: Path, name: str) -> None:
    root = rendered(tmp_path / "demo", name)
    uv = find_uv(os.environ)
    assert uv is not None
    lines: list[str] = []
    builder = Builder(
        uv=uv,
        cache_dir=cache,
        wheel=build_wheel(cache),
        environ=dict(os.environ),  # how this machine reaches its package index
        log=JobLog(None, lambda line: lines.append(line.message)),
    )
    folder = root / "rollouts" / "mine"
    project = await asyncio.to_thread(read_project, folder, "rollouts/mine")
    environment = await builder.environment(project, commit_sha="", install_to=tmp_path / "installed")
    check_report(name, *await run_rollout(root, "mine", environment.python))
