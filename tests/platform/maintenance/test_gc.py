"""The sweep removes what nothing needs and nothing else; a dry run removes nothing."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from osmosis.base.locks import lock_if_free
from osmosis.errors import Conflict
from osmosis.platform import Platform, tables
from osmosis.platform.auth import tokens, users
from osmosis.platform.datasets import ingest
from osmosis.platform.maintenance.gc import LOCK, LOG_LINES, ROW_KINDS, sweep
from osmosis.platform.runs import lifecycle
from osmosis.records.base import utc_now
from support.platform_data import add_rollouts, add_run, rollout

DAY_S = 24 * 3600.0


def aged(path: Path, days: float = 100.0) -> Path:
    """Give a path an old time."""
    os.utime(path, (time.time() - days * DAY_S,) * 2)
    return path


def folder(path: Path, *files: str) -> Path:
    path.mkdir(parents=True)
    for name in files:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("x" * 5000)
    return path


def workspace_of(platform: Platform) -> str:
    with platform.db.read() as session:
        return session.scalars(sa.select(tables.Workspace.id)).one()


def over(platform: Platform, name: str, *, days: float, status: str = "finished", **more: Any) -> Path:
    """Add a run that ended so long ago, and its folder with everything that a run leaves."""
    run_id = add_run(
        platform, workspace_of(platform), name, status, completed_at=utc_now() - timedelta(days=days), **more
    )
    with platform.db.write() as session:
        lifecycle.log(session, session.get_one(tables.Run, run_id), "a line")
    work = ("source/main.py", "installed/x.py", "journal/rollouts.jsonl", "job.log", "artifacts/r/artifacts/a.txt")
    return folder(platform.settings.runs_dir / run_id, *work, "retry-1/source/main.py", "retry-1/job.log")


def with_days(platform: Platform, **days: int | None) -> Platform:
    settings = platform.settings.model_copy(update={f"keep_{name}_days": value for name, value in days.items()})
    return Platform(settings, platform.db, platform.vault, platform.objects)


def test_files_that_no_row_knows_go_and_their_neighbours_stay(ready: Any) -> None:
    platform, settings = ready.platform, ready.platform.settings
    kept = over(platform, "kept", days=1)
    gone = [
        folder(settings.runs_dir / "deleted", "job.log"),
        folder(settings.models_dir / "runs" / "deleted", "adapter_model.safetensors"),
        folder(settings.models_dir / "base" / "deleted", "model.safetensors"),
        folder(settings.objects_dir / "uploads" / "deleted", "1"),
        folder(settings.objects_dir / "imports" / "deleted", "files/1"),
        folder(settings.repositories_dir / "replaced.git", "HEAD"),
        folder(settings.data_dir / "mirrors" / "replaced.git", "HEAD"),
        folder(settings.data_dir / ".restoring-x", "platform.db"),
    ]
    (settings.repositories_dir / "link").symlink_to(kept)
    young = folder(settings.runs_dir / "on-its-way", "job.json")
    for path in gone:
        aged(path)
    os.utime(settings.repositories_dir / "link", (0, 0), follow_symlinks=False)
    said = sweep(platform, dry_run=True)
    assert {waste.what for waste in said} >= {settings.stored(path) for path in gone}
    assert all(path.exists() for path in gone)
    assert all(waste.size >= 4096 for waste in said if (settings.data_dir / waste.what).is_dir())
    done = sweep(platform)
    assert {waste.what for waste in done} >= {settings.stored(path) for path in gone}
    assert not any(path.exists() for path in gone)
    assert (kept / "job.log").exists()
    assert young.exists()
    assert ready.json("GET", "rollouts")["total_count"] == 1, "the repository in use is there"
    assert sweep(platform, dry_run=True) == [waste for waste in said if waste.what == "repositories/link"]


def test_files_of_datasets_that_are_gone_go_with_the_last_run_that_read_them(ready: Any) -> None:
    """In any order of deletion; a file that an upload is about to store stays."""
    platform = ready.platform
    with platform.db.read() as session:
        dataset = session.scalars(sa.select(tables.Dataset)).one()
    home = platform.settings.objects_dir / "datasets" / dataset.id
    lost = aged(folder(platform.settings.objects_dir / "datasets" / "lost", "x.jsonl") / "x.jsonl")
    replaced = home / "earlier.jsonl"
    replaced.write_text("{}")
    aged(replaced)
    arriving = home / f"{'a' * 32}.jsonl"
    arriving.write_text("{}")
    aged(arriving)
    with platform.db.write() as session:
        upload = {"id": "a" * 32, "dataset_id": dataset.id, "status": "processing", "format": "jsonl"}
        session.add(tables.Upload(**upload, size=1, part_size=0, parts=1))
    sweep(platform)
    assert not lost.exists()
    assert not replaced.exists()
    assert arriving.exists()
    ingest.clean(platform, dataset.id)
    assert arriving.exists()
    assert platform.settings.located(dataset.path).exists()


def test_what_old_runs_worked_with_goes_and_what_they_made_stays(site: Any) -> None:
    platform = site.platform
    old, recent = over(platform, "old", days=31), over(platform, "recent", days=29)
    resumable = over(platform, "resumable", days=31, kind="training", status="failed")
    gone = sweep(platform)
    assert {waste.kind for waste in gone} == {"run folders"}
    assert sorted(path.name for path in old.iterdir()) == ["artifacts", "job.log", "retry-1"]
    assert [path.name for path in (old / "retry-1").iterdir()] == ["job.log"]
    assert (recent / "source").exists()
    assert (resumable / "journal").exists()


def test_artifacts_and_logs_go_when_the_operator_says_so(site: Any) -> None:
    platform = site.platform
    old = over(platform, "old", days=31)
    with platform.db.read() as session:
        run = session.scalars(sa.select(tables.Run)).one()
    add_rollouts(platform, run.id, [rollout(0, 0)])
    assert {waste.kind for waste in sweep(with_days(platform, runs=None))} == set()
    gone = sweep(with_days(platform, artifacts=30, logs=30))
    assert {waste.kind for waste in gone} == {"run folders", "artifacts", "logs", LOG_LINES}
    assert [path.name for path in old.rglob("*") if path.is_file()] == []
    with platform.db.read() as session:
        assert session.scalars(sa.select(tables.RunLog.message)).all() == []
        assert session.scalars(sa.select(tables.Rollout.rollout_id)).all() == ["r-0-0"]


def test_caches_stay_while_a_run_lives_that_may_use_them(site: Any) -> None:
    """A training run of a month keeps what it started with; when it is over, that goes, too."""
    platform, cache = site.platform, site.platform.settings.cache_dir
    workspace = workspace_of(platform)
    began = utc_now() - timedelta(days=40)
    hub = {"model_path": "Qwen/Qwen3", "kind": "training"}
    run_id = add_run(platform, workspace, "live", "running", started_at=began, **hub)
    used = folder(cache / "environments" / workspace / "used", ".osmosis-environment.json", "env/x")
    aged(used / ".osmosis-environment.json", days=40)
    old = folder(cache / "environments" / workspace / "old", ".osmosis-environment.json")
    aged(old / ".osmosis-environment.json", days=41)
    caches = [aged(folder(cache / "uv" / name, "x")) for name in (workspace, "deleted")]
    models = [aged(folder(cache / "hub" / name, "x")) for name in ("Qwen--Qwen3", "other--model")]
    sweep(platform)
    assert [path.exists() for path in (used, old, *caches, *models)] == [True, False, True, False, True, False]
    with platform.db.write() as session:
        run = session.get_one(tables.Run, run_id)
        run.status, run.completed_at, run.created_at = "finished", utc_now(), began
    sweep(with_days(platform, caches=None))
    assert used.exists()
    sweep(platform)
    assert not any(path.exists() for path in (used, *caches, *models))


def test_one_sweep_at_a_time(shared: Any) -> None:
    with lock_if_free(shared.platform.settings.data_dir / LOCK), pytest.raises(Conflict, match="another process"):
        sweep(shared.platform)


def test_rows_that_had_their_day_go_and_what_they_say_stays(ready: Any) -> None:
    platform, now = ready.platform, utc_now()
    with platform.db.write() as session:
        owner = users.ensure_owner(session, "local")
        for name, days in (("old", -31), ("lately", -5), ("good", 5)):
            issued = tokens.issue(session, owner, name, kind="personal")
            issued.row.expires_at = now + timedelta(days=days)
        parent = tokens.issue(session, owner, "parent", kind="personal")
        child = tokens.issue(session, owner, "child", maker=parent.row)
        parent.row.expires_at, child.row.expires_at = now - timedelta(days=40), now + timedelta(days=1)
        revoked = tokens.issue(session, owner, "revoked")
        revoked.row.revoked_at = now - timedelta(days=31)
        for text, days in (("gone", 2), ("fresh", 0)):
            code = tables.DeviceCode(device_hash=text, user_code=text, device_name=text)
            code.expires_at = now - timedelta(days=days)
            session.add(code)
        repository = session.scalars(sa.select(tables.Repository)).one()
        first = session.scalars(sa.select(tables.SyncEvent)).one()
        first.created_at = first.finished_at = now - timedelta(days=200)
        branch = {"repository_id": repository.id, "branch": "other", "commit_sha": "x"}
        for status, days in (("Success", 120), ("Failed", 110), ("Success", 100), ("Failed", 1)):
            when = now - timedelta(days=days)
            session.add(tables.SyncEvent(status=status, created_at=when, finished_at=when, message=str(days), **branch))
        last = first.branch
    said = {waste.kind: waste.size for waste in sweep(platform, dry_run=True) if waste.kind in ROW_KINDS}
    assert said == {"tokens": 2, "device codes": 1, "sync events": 2}
    sweep(platform)
    with platform.db.read() as session:
        names = set(session.scalars(sa.select(tables.Token.name)))
        assert names >= {"lately", "good", "parent", "child"}
        assert not names & {"old", "revoked"}
        assert session.scalars(sa.select(tables.DeviceCode.user_code)).all() == ["fresh"]
        kept = {(event.branch, event.message) for event in session.scalars(sa.select(tables.SyncEvent))}
        assert {("other", "100"), ("other", "1")} <= kept
        assert {branch for branch, _ in kept} == {last, "other"}, "where a branch is stays known"
        assert len(kept) == 3
    assert ready.json("GET", "rollouts")["rollouts"], "and so does what it holds"
