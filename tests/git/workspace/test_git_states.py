"""Every git and sync state of the table gives exactly the findings the table says, each with its fix."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from osmosis.records.api.workspaces import SyncReport
from osmosis.records.config.experiment import Experiment
from osmosis.records.run.source import PinnedCommit, RolloutFiles, Source, SyncState
from osmosis.workspace.preflight import Facts, check_submit

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TABLE = Path(__file__).with_name("git_states.txt").read_text("utf-8")
A, B = "a" * 40, "b" * 40


def cases() -> list[tuple[str, list[str], list[str]]]:
    found = []
    for block in re.split(r"^=== ", TABLE, flags=re.MULTILINE)[1:]:
        name, _, rest = block.partition("\n")
        changes, _, said = ("\n" + rest).partition("\n---\n")
        found.append((name, [c for c in changes.split("\n") if c], [s for s in said.split("\n") if s]))
    return found


CASES = cases()


def value_of(text: str) -> Any:
    if text == "none":
        return None
    return _full(tomllib.loads(f"v = {text}")["v"])


def _full(value: Any) -> Any:
    """`A` and `B` stand for whole commits."""
    if isinstance(value, dict):
        return {k: _full(v) for k, v in value.items()}
    return {"A": A, "B": B}.get(value, value) if isinstance(value, str) else value


def state(changes: list[str]) -> tuple[dict[str, dict[str, Any]], set[str], set[str]]:
    facts: dict[str, dict[str, Any]] = {
        "source": {
            "root": "/ws", "branch": "main", "commit": A, "upstream": "origin/main", "ahead": 0, "behind": 0,
            "remote_url": "https://host.example/owner/repo.git", "identity": "owner/repo", "default_branch": "main",
        },
        "files": {"rollout": "multiply", "tracked": 3},
        "sync": {
            "repository": "owner/repo", "default_branch": "main", "commit_sha": A, "branches": {"main": A},
            "status": "Success", "rollouts": ["multiply"],
        },
        "experiment": {"rollout": "multiply", "entrypoint": "main.py", "model_path": "m", "dataset": "d"},
        "pin": {},
    }  # fmt: skip
    none, flags = set(), set()
    for change in changes:
        if found := re.match(r"^(source|sync) none$", change):
            none.add(found[1])
        elif found := re.match(r"^flag (\w+)$", change):
            flags.add(found[1])
        else:
            path, _, text = change.partition(" = ")
            table, _, key = path.partition(".")
            facts[table][key] = value_of(text)
    return facts, none, flags


def test_the_table_is_long() -> None:
    assert len(CASES) >= 45


@pytest.mark.parametrize(("changes", "said"), [(c, s) for _, c, s in CASES], ids=[n for n, _, _ in CASES])
def test_state(changes: list[str], said: list[str]) -> None:
    facts, none, flags = state(changes)
    experiment = Experiment.model_validate(facts["experiment"])
    pin = PinnedCommit(asked=experiment.commit_sha, **facts["pin"]) if experiment.commit_sha else None
    found = check_submit(
        experiment,
        Facts(
            None if "source" in none else Source.model_validate(facts["source"]),
            RolloutFiles.model_validate(facts["files"]),
            pin,
        ),
        None if "sync" in none else SyncState.model_validate(facts["sync"]),
        allow_dirty="allow_dirty" in flags,
        snapshot="snapshot" in flags,
    )
    lines = [f"{p.severity} {p.code} | {p.where + ': ' if p.where else ''}{p.what} | {p.fix}" for p in found]
    assert lines == said


def test_the_answer_of_a_platform_becomes_a_state() -> None:
    body = {
        "repository": {"full_name": "owner/repo", "url": "x"},
        "status": "Failed",
        "default_branch": "main",
        "last_synced_commit_sha": A,
        "branches": [{"name": "main", "commit_sha": A}, {"name": "dev", "commit_sha": B}],
        "events": [
            {"status": "Failed", "error": "no answer", "commit_sha": None},
            {"status": "Success", "commit_sha": "c" * 40},
        ],
    }
    found = SyncReport.model_validate(body).state()
    assert (found.connected, found.repository, found.status, found.error) == (True, "owner/repo", "Failed", "no answer")
    assert (found.synced(None), found.synced("main"), found.synced("dev"), found.synced("x")) == (A, A, B, None)
    assert found.knows("ccccccc")
    assert not found.knows("ddddddd")
    assert not SyncReport.model_validate({"connected": False}).state().connected
