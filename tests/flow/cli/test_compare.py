"""`osmosis eval compare` of runs of this machine and of the platform, in every combination."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from osmosis.engine.journal import Journal
from osmosis.records.plan import EvalPlan, ModelSpec, Selection
from osmosis.records.rollout import Rollout
from osmosis.testing.command_line import CommandRun, run_command
from osmosis.testing.platform_app import running_platform
from osmosis.testing.platform_data import add_rollouts, add_run, rollout

pytestmark = pytest.mark.flow
Run = Callable[..., CommandRun]
ROWS = 24


def rollouts(passed: int) -> list[Rollout]:
    """One attempt at each row, of which the first ones pass."""
    keyed = [rollout(row, 0, 1.0 if row < passed else 0.0) for row in range(ROWS)]
    for one in keyed:
        one.row_key = f"row-{one.row_index}"
    return keyed


def keep_local(cwd: Path, name: str, passed: int) -> None:
    plan = EvalPlan(
        name=name, agent="agent:run", dataset="d.jsonl", model=ModelSpec.parse("offline/x"), selection=Selection()
    )
    journal = Journal(cwd / ".osmosis" / "runs" / name)
    journal.open(plan)
    for one in rollouts(passed):
        journal.append(one)
    journal.close()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """The command line, beside local runs `base` and `trained`, and `base-1` and `trained-1` on a platform."""
    with running_platform(tmp_path / "data") as platform:
        for name, passed in (("base-1", 6), ("trained-1", 20)):
            add_rollouts(platform.parts, add_run(platform.parts, platform.workspace_id, name), rollouts(passed))
            keep_local(tmp_path, name.removesuffix("-1"), passed)
        folders = {f"OSMOSIS_{name}_DIR": str(tmp_path / ".home" / name) for name in ("CONFIG", "DATA", "CACHE")}
        environ = {**folders, "OSMOSIS_PLATFORM_URL": platform.url, "OSMOSIS_TOKEN": platform.token}
        environ["OSMOSIS_TOKEN_PLATFORM_URL"] = platform.url

        def go(*words: str, **more: str) -> CommandRun:
            place = ("--workspace", platform.workspace, "--json")
            return run_command(*words, *place, cwd=tmp_path, environ={**environ, **more})

        yield go


@pytest.mark.parametrize(
    ("a", "b"), [("base-1", "trained-1"), ("base", "trained-1"), ("platform:base-1", "trained"), ("base", "trained")]
)
def test_every_combination_says_the_same(run: Run, a: str, b: str) -> None:
    done = run("eval", "compare", a, b)
    assert done.code == 0, done.err
    data = done.json["data"]
    assert (data["verdict"], data["pairs"], data["gained"], data["lost"]) == ("better", ROWS, 14, 0)
    assert data["difference"] == pytest.approx(14 / 24)
    assert data["difference_ci"][0] > 0
    first = data["transcripts"][0]
    assert first["transcript_a"][-1]["content"].endswith("#### 0")
    assert not first["transcript_b"][-1]["content"].endswith("#### 0")


def test_a_regression_ends_with_1(run: Run) -> None:
    done = run("eval", "compare", "trained-1", "base-1", "--fail-on-regression")
    assert (done.code, done.json["data"]["verdict"]) == (1, "worse")


def test_a_name_that_is_nowhere_says_where_it_was_looked_for(run: Run) -> None:
    refused = run("eval", "compare", "base-1", "gone")
    assert refused.code == 1
    assert "nor an evaluation of that name on the platform" in refused.error["message"]
    without = run("eval", "compare", "base", "gone", OSMOSIS_TOKEN="", OSMOSIS_PLATFORM_URL="http://127.0.0.1:9")
    assert "existing: base, trained" in without.error["message"]
    assert run("eval", "compare", "base", "trained", OSMOSIS_PLATFORM_URL="http://127.0.0.1:9").code == 0
