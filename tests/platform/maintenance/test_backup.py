"""A restored backup gives the same answers, on either database; a damaged one is refused."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient
from pydantic import ValidationError as BadShape

from osmosis.errors import Conflict, OsmosisError, PlatformError, ValidationError
from osmosis.platform import Platform, tables
from osmosis.platform.app import create_app
from osmosis.platform.backup import create, restore
from osmosis.platform.backup.archive import BackupManifest, StoredRepository
from osmosis.platform.db import Database
from osmosis.platform.scheduling import queue
from osmosis.platform.settings import PlatformSettings
from support.platform_data import a_worker, add_rollouts, rollout

pytestmark = pytest.mark.slow

POSTGRES = os.environ.get("OSMOSIS_TEST_POSTGRES_URL", "")
BODY = {
    "experiment_config": {
        "rollout": "multiply",
        "entrypoint": "main.py",
        "model_path": "offline/calculator",
        "dataset": "sums",
    },
    "evaluation_config": {"limit": 2},
}


@pytest.fixture
def other_database() -> Iterator[Callable[[str], str]]:
    """Return the URL of an empty database of a kind."""
    made: list[str] = []

    def new(kind: str) -> str:
        if kind == "sqlite":
            return ""
        made.append(f"osmosis_test_{uuid.uuid4().hex}")
        run(f"CREATE DATABASE {made[-1]}")
        return sa.make_url(POSTGRES).set(database=made[-1]).render_as_string(hide_password=False)

    def run(statement: str) -> None:
        admin = sa.create_engine(POSTGRES, isolation_level="AUTOCOMMIT")
        with admin.connect() as connection:
            connection.execute(sa.text(statement))
        admin.dispose()

    yield new
    for name in made:
        run(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def lived_in(ready: Any) -> Any:
    """A platform with a secret, a run with rollouts and artifacts, one in flight, a model and a force-pushed commit."""
    secret = {"name": "API_KEY", "value": "the-secret-value", "scope": "workspace"}
    ready.json("POST", "environment-secrets", json=secret)
    first = ready.json("POST", "eval-runs", json=BODY)
    add_rollouts(ready.platform, first["id"], [rollout(0, 0), rollout(1, 0, 0.0)])
    settings = ready.platform.settings
    artifacts = settings.runs_dir / first["id"] / "artifacts" / "r-0-0" / "artifacts"
    artifacts.mkdir(parents=True)
    (artifacts / "made.txt").write_text("by the rollout")
    (artifacts / "key").symlink_to(settings.data_dir / "master.key")
    os.mkfifo(artifacts / "pipe")
    (settings.models_dir / "runs" / "x" / "step-1").mkdir(parents=True)
    (settings.models_dir / "runs" / "x" / "step-1" / "adapter_model.safetensors").write_bytes(b"weights")
    with ready.platform.db.write() as session:
        claimed = queue.claim(session, a_worker(session), 60)
        claimed.job.handle = {"executor": "local", "machine": "here", "pid": 1, "output": "x"}
    return ready


def settings_for(folder: Path, database_url: str) -> PlatformSettings:
    environ = {"PATH": os.environ["PATH"]}
    return PlatformSettings(
        data_dir=folder, worker=False, database_url=database_url, allowed_hosts=("testserver",), environ=environ
    )


@pytest.mark.parametrize("kind", ["sqlite", *(["postgres"] if POSTGRES else [])])
def test_a_platform_comes_back_with_all_it_had(lived_in: Any, tmp_path: Path, kind: str, other_database: Any) -> None:
    """From each database into each; runs in flight wait for a worker, and every secret opens."""
    old = lived_in.platform
    made = create.create_backup(old.settings, tmp_path / "all.tar.gz", with_master_key=True)
    assert made.path.stat().st_mode & 0o777 == 0o600
    before = {path: lived_in.json("GET", path) for path in ("datasets", "environment-secrets", "rollouts")}
    settings = settings_for(tmp_path / "new", other_database(kind))
    done = restore.restore(settings, made.path)
    assert (done.rows, done.repositories, done.runs_in_flight, done.has_key) == (made.rows, 1, 1, True)
    app = create_app(settings)
    with TestClient(app, headers=dict(lived_in.http.headers)) as http:
        for path, body in before.items():
            assert http.get(f"/api/cli/{path}").json() == body
        run = http.get("/api/cli/eval-runs").json()["eval_runs"][0]
        rows = http.get(f"/api/cli/eval-runs/{run['name']}/rollouts").json()["rollouts"]
        assert [row["row_index"] for row in rows] == [0, 1]
        again = http.post("/api/cli/eval-runs", json=BODY)
        assert again.status_code == 200, again.text  # numbers go on, the repository has its commits
    new = app.state.platform
    with new.db.read() as session:
        stored = session.get_one(tables.Run, run["id"])
        (job,) = session.scalars(queue.waiting_jobs().where(tables.Job.run_id == run["id"])).all()
        assert (stored.status, job.lease_hash, job.handle, job.starts) == ("running", None, None, 0)
        lines = session.scalars(sa.select(tables.RunLog.message).where(tables.RunLog.run_id == run["id"])).all()
        assert any("the run starts again" in line for line in lines)
        assert Path(new.settings.located(stored.dataset_path)).read_bytes().count(b"\n") == 40
    kept = settings.runs_dir / run["id"] / "artifacts" / "r-0-0" / "artifacts"
    assert sorted(path.name for path in kept.iterdir()) == ["made.txt"]
    assert (settings.models_dir / "runs" / "x" / "step-1" / "adapter_model.safetensors").read_bytes() == b"weights"
    assert (settings.data_dir / "master.key").read_bytes() == (old.settings.data_dir / "master.key").read_bytes()
    new.db.close()


def test_the_master_key_is_in_it_only_when_asked_for(lived_in: Any, tmp_path: Path) -> None:
    settings = lived_in.platform.settings
    key = (settings.data_dir / "master.key").read_bytes().strip()
    made = create.create_backup(settings, tmp_path / "plain.tar")
    assert key not in made.path.read_bytes()
    assert b"the-secret-value" not in made.path.read_bytes()
    new = settings_for(tmp_path / "new", "")
    wrong = tmp_path / "wrong.key"
    wrong.write_text("A" * 43 + "=\n")
    with pytest.raises(ValidationError, match="need"):
        restore.restore(new, made.path, master_key=wrong)
    assert not restore.restore(new, made.path).has_key
    shutil.rmtree(new.data_dir)
    assert restore.restore(new, made.path, master_key=settings.data_dir / "master.key").has_key


def test_what_is_damaged_or_foreign_changes_nothing(lived_in: Any, tmp_path: Path) -> None:
    made = create.create_backup(lived_in.platform.settings, tmp_path / "all.tar").path
    content = made.read_bytes()
    flipped = bytearray(content)
    flipped[content.index(b'"user_prompt"')] ^= 1
    cases = {"cut": content[: len(content) // 2], "flipped": bytes(flipped), "text": b"no archive", "empty": b""}
    for name, data in cases.items():
        (tmp_path / name).write_bytes(data)
        new = settings_for(tmp_path / f"new-{name}", "")
        with pytest.raises(ValidationError, match=r"damaged|no backup"):
            restore.restore(new, tmp_path / name)
        assert not [path for path in new.data_dir.glob("*") if path.name not in restore.HARMLESS]


def evil_backup(good: Path, member: tarfile.TarInfo) -> Path:
    """A whole backup with right checksums and one more member."""
    bad = good.with_name("bad.tar")
    with tarfile.open(good) as source, tarfile.open(bad, "w") as target:
        for about in source:
            content = source.extractfile(about)
            assert content is not None
            if about.name != "manifest.json":
                target.addfile(about, content)
                continue
            manifest = BackupManifest.model_validate_json(content.read())
            manifest.files[member.name] = hashlib.sha256(b"evil").hexdigest()
            text = manifest.model_dump_json().encode()
            member.size = 4 if member.isreg() else 0
            target.addfile(member, io.BytesIO(b"evil"))
            about.size = len(text)
            target.addfile(about, io.BytesIO(text))
    return bad


def test_a_member_that_no_backup_has_is_refused(tmp_path: Path, lived_in: Any) -> None:
    good = create.create_backup(lived_in.platform.settings, tmp_path / "all.tar").path
    members = [
        tarfile.TarInfo(name)
        for name in (
            "data/../../evil", "/evil", "data\\..\\evil", "platform.db", "data/platform.db", "data/master.key",
            "data/repositories/a1.git/hooks/reference-transaction", "data/mirrors/a1.git/config", "bundles/../evil",
            "data/cache/environments/x/bin/python", "data/runs/r1/source/.git/config", "data/runs/r1/environment/x.py",
            "data/runs/evil", "data/bootstrap.token", "database/../evil", "evil",
        )
    ]  # fmt: skip
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE):
        members.append(tarfile.TarInfo("data/objects/evil"))
        members[-1].type, members[-1].linkname = kind, "/etc/passwd"
    for member in members:
        new = settings_for(tmp_path / "new", "")
        with pytest.raises(ValidationError, match=r"not a plain file|no backup has"):
            restore.restore(new, evil_backup(good, member))
        assert not [path for path in new.data_dir.glob("*") if path.name not in restore.HARMLESS], member.name
    assert not list(tmp_path.rglob("evil"))
    assert restore.restore(settings_for(tmp_path / "new", ""), evil_backup(good, tarfile.TarInfo("data/objects/x")))


def test_a_repository_that_leaves_its_folder_is_refused(tmp_path: Path) -> None:
    def stored(**field: str) -> StoredRepository:
        fields = {"id": "a1", "kind": "internal", "url": "", "path": "repositories/a1.git", "default_branch": "main"}
        return StoredRepository.model_validate({**fields, **field})

    assert restore._locate_repository(tmp_path, stored()).path == tmp_path / "repositories" / "a1.git"
    for path in ("", ".", "..", "repositories/..", "../repositories/a1.git", "/tmp/a1.git"):
        with pytest.raises(ValidationError, match="outside of the data folder"):
            restore._locate_repository(tmp_path, stored(path=path))
    for id_ in ("", ".", "..", "../a1", "a/b", "a1\n"):
        with pytest.raises(BadShape):
            stored(id=id_)


def test_a_folder_or_a_file_in_use_is_refused(lived_in: Any, tmp_path: Path) -> None:
    settings = lived_in.platform.settings
    made = create.create_backup(settings, tmp_path / "all.tar").path
    with pytest.raises(Conflict, match="is in use"):
        restore.restore(settings, made)
    with pytest.raises(Conflict, match="exists already"):
        create.create_backup(settings, made)
    with pytest.raises(OsmosisError, match=r"no platform\.db"):
        create.create_backup(settings_for(tmp_path / "nothing", ""), tmp_path / "x.tar")
    if settings.database_url:
        with pytest.raises(Conflict, match="database is in use"):
            restore.restore(settings_for(tmp_path / "other", settings.database_url), made)


def test_an_upgrade_keeps_the_rows_first_and_they_can_be_put_back(
    tmp_path: Path, database_url: str, other_database: Any
) -> None:
    settings = settings_for(tmp_path / "data", database_url)
    older = Database(settings.database)
    older.migrate("0004")
    with older.engine.begin() as connection:
        connection.execute(sa.text("INSERT INTO workspaces VALUES ('w1', 'here', '2026-01-01 00:00:00')"))
    older.close()
    Platform.open(settings).db.close()
    (kept,) = (settings.data_dir / "backups").iterdir()
    Platform.open(settings).db.close()
    assert list((settings.data_dir / "backups").iterdir()) == [kept], "made once, when the database was upgraded"

    again = settings_for(tmp_path / "data", other_database("postgres") if database_url else "")
    done = restore.restore(again, kept)
    assert (done.header.revision, done.rows) == ("0004", 1)
    assert (done.put_aside is not None and done.put_aside.exists()) == (not database_url)
    db = Database(again.database)
    with db.read() as session:
        assert session.scalars(sa.text("SELECT name FROM workspaces")).all() == ["here"]
    assert db.revision() == "0004"
    db.close()


def test_a_backup_that_cannot_be_written_stops_the_upgrade(tmp_path: Path) -> None:
    settings = settings_for(tmp_path / "data", "")
    older = Database(settings.database)
    older.migrate("0004")
    (settings.data_dir / "backups").write_text("in the way")
    with pytest.raises(PlatformError, match="backup cannot be written"):
        Platform.open(settings)
    assert older.revision() == "0004"
    older.close()
    Platform.open(settings.model_copy(update={"backup_before_upgrade": False})).db.close()
