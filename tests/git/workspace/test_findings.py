"""A finding has the same words wherever it is told, and one thing comes next."""

from __future__ import annotations

from typing import Any

import pytest

from osmosis.records.config.experiment import Experiment
from osmosis.records.run.source import RolloutFiles, Source, SyncState
from osmosis.workspace.preflight import Facts, check_submit, detached, list_differences, next_step, unpushed

HERE, THERE = "a" * 40, "b" * 40
EXPERIMENT = Experiment(rollout="r", entrypoint="main.py", model_path="offline/echo", dataset="d")


def source(**facts: Any) -> Source:
    known = {
        "root": "/w",
        "remote_url": "https://h.example/o/r.git",
        "identity": "o/r",
        "branch": "main",
        "commit": HERE,
    }
    return Source(**{**known, "upstream": "origin/main", "default_branch": "main", **facts})


def sync(commit: str = HERE, **facts: Any) -> SyncState:
    return SyncState(**{"default_branch": "main", "commit_sha": commit, "branches": {"main": commit}, **facts})


@pytest.mark.parametrize(
    ("here", "there"),
    [
        (source(ahead=2), sync()),
        (source(dirty=["rollouts/r/main.py"]), sync()),
        (source(untracked=["rollouts/r/new.py"]), sync()),
        (source(conflicts=["rollouts/r/main.py"], dirty=["rollouts/r/main.py"], operation="rebase"), sync()),
        (source(), sync(THERE)),
        (source(), sync(THERE, status="Syncing")),
        (source(), sync(THERE, status="Failed", error="no answer")),
        (source(), sync(connected=False)),
    ],
)
def test_sync_says_what_a_submit_says(here: Source, there: SyncState) -> None:
    told = [found.what for found in list_differences(here, there)]
    files = RolloutFiles(rollout="r", tracked=1)
    assert told == [found.what for found in check_submit(EXPERIMENT, Facts(here, files), there)]
    assert len(told) == 1


@pytest.mark.parametrize(
    ("here", "there", "step"),
    [
        (source(operation="merge", conflicts=["a"]), None, "finish it: resolve the conflicts"),
        (source(dirty=["a"], ahead=1), sync(connected=False), "commit your changes"),
        (source(ahead=1), None, None),
        (source(ahead=1), sync(connected=False), "connect it"),
        (source(ahead=1), sync(THERE), "push"),
        (source(upstream=None), sync(THERE), "push"),
        (source(branch=None, detached=True, dirty=["a"]), sync(THERE), "switch to a branch"),
        (source(), sync(THERE), "sync the platform"),
        (source(), sync(), None),
    ],
)
def test_one_thing_comes_next(here: Source, there: SyncState | None, step: str | None) -> None:
    found = next_step(here, there)
    assert (found[0][: len(step)] if found and step else found) == step


def test_what_was_not_pushed_is_said_with_what_to_type() -> None:
    assert unpushed(source()) is None
    for finding in (
        unpushed(source(ahead=1)),
        unpushed(source(upstream=None)),
        detached(source(branch=None, detached=True), "main"),
    ):
        assert finding is not None
        assert finding.fix
