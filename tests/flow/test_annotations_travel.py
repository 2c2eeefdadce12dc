"""Annotations, and the tokens of calls, survive upload and download without loss or duplicates."""

import json
from datetime import datetime, timezone
from pathlib import Path

import pytest

from osmosis.engine.journal import AnnotationFile, read_annotations
from osmosis.platform import tables
from osmosis.platform.runs import rollouts as judgements
from osmosis.records.run.annotations import Annotation
from osmosis.records.run.rollout import CallTokens, ModelCall
from support.command_line import CommandRun, run_command
from support.git_workspace import GitWorkspace
from support.platform_app import RunningPlatform
from support.platform_data import rollout
from support.stored_run import stored_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = GitWorkspace(tmp_path / "work")
    tokens = CallTokens(completion_token_ids=[5, 6], logprobs=[-0.1, -2.0])
    calls = [ModelCall(started_ms=0, duration_ms=1, tokens=tokens)]
    rollouts = [rollout(row, 0, 1.0, calls=calls) for row in range(2)]
    stored_run(made.root / ".osmosis" / "runs" / "nightly", rollouts, attempts=1)
    return made.root


def go(platform: RunningPlatform, folder: Path, *words: str) -> CommandRun:
    done = platform.run(*words, cwd=folder, CI="1")
    assert done.code == 0, done.err
    return done


def say(row: int, label: str, author: str = "ada", minute: int = 0) -> Annotation:
    when = datetime(2026, 11, 22, 10, minute, tzinfo=timezone.utc)
    return Annotation(row_index=row, attempt=0, rollout_id=f"r-{row}-0", label=label, author=author, created_at=when)


def test_labels_go_up_and_come_down_without_doubling(platform: RunningPlatform, folder: Path) -> None:
    here = AnnotationFile(folder / ".osmosis" / "runs" / "nightly")
    here.add(say(0, "right"))
    here.add(say(0, "wrong", minute=5))
    run_command("eval", "tag", "nightly", "keep", cwd=folder)
    name = go(platform, folder, "eval", "upload", "nightly").json["resource"]["name"]
    with platform.parts.db.write() as session:
        run = session.query(tables.Run).filter_by(name=name).one()
        assert run.tags == ["keep"]
        assert [one.label for one in judgements.list_annotations(session, run.id)] == ["wrong"], "the newest counts"
        judgements.add_annotation(session, run.id, say(1, "unsure", author="bob", minute=9), None)
    pull = ("eval", "download", name, "--type", "annotations", "--labels-into", "nightly", "-o", "out")
    first, second = (go(platform, folder, *pull).json["resource"]["labels_added"] for _ in range(2))
    assert (first, second) == (1, 0)
    said = [(one.row_index, one.label, one.author) for one in here.read()]
    assert said == [(0, "right", "ada"), (0, "wrong", "ada"), (1, "unsure", "bob")]
    assert len(read_annotations(folder / "out" / "annotations.jsonl")) == 3
    go(platform, folder, "eval", "upload", "nightly", "--replace")
    with platform.parts.db.read() as session:
        run = session.query(tables.Run).filter_by(name=name).one()
        assert len(list(judgements.iterate_annotations(session, run.id))) == 3, "the same words are there once"


def test_lines_that_are_no_annotations_do_not_stop_an_upload(platform: RunningPlatform, folder: Path) -> None:
    here = AnnotationFile(folder / ".osmosis" / "runs" / "nightly")
    here.add(say(1, "right"))
    with here.path.open("ab") as out:
        out.write(b'{"row_index": -4}\n\xff\xfe\n{"cut')
    name = go(platform, folder, "eval", "upload", "nightly").json["resource"]["name"]
    with platform.parts.db.read() as session:
        run = session.query(tables.Run).filter_by(name=name).one()
        assert [one.row_index for one in judgements.iterate_annotations(session, run.id)] == [1]


def test_tokens_travel_as_they_were_kept(platform: RunningPlatform, folder: Path) -> None:
    kept = (folder / ".osmosis" / "runs" / "nightly" / "tokens.jsonl").read_bytes()
    assert json.loads(kept.splitlines()[0])["llm_call_metrics"][0]["completion_token_ids"] == [5, 6]
    name = go(platform, folder, "eval", "upload", "nightly").json["resource"]["name"]
    done = go(platform, folder, "eval", "download", name, "--type", "tokens", "-o", "out").json["resource"]
    assert (done["files"], (folder / "out" / "tokens.jsonl").read_bytes()) == (1, kept)
    go(platform, folder, "eval", "upload", "nightly", "--replace")
    go(platform, folder, "eval", "download", name, "--type", "tokens", "-o", "again")
    assert (folder / "again" / "tokens.jsonl").read_bytes() == kept
    bare = stored_run(folder / ".osmosis" / "runs" / "bare", [rollout(0, 0, 1.0)], rows=1, attempts=1)
    assert not bare.tokens_path.exists()
    name = go(platform, folder, "eval", "upload", "bare").json["resource"]["name"]
    assert (
        go(platform, folder, "eval", "download", name, "--type", "tokens", "-o", "none").json["resource"]["files"] == 0
    )
