"""A data folder is moved, or comes from an older version: what the database says about files still leads to them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from osmosis.platform import tables
from osmosis.platform.app import create_app
from osmosis.platform.db import MIGRATIONS, Database
from osmosis.platform.settings import PlatformSettings
from osmosis.platform.worker import Worker
from osmosis.records.base import utc_now
from osmosis.records.run import JobSpec

BODY = {
    "experiment_config": {"rollout": "multiply", "entrypoint": "main.py", "model_path": "offline/calculator"},
    "evaluation_config": {"limit": 2},
    "secrets": {"required": []},
}
FILL = {str: "x", int: 0, float: 0.0, bool: False, datetime: utc_now()}
"""By type of the column; the others are JSON."""


@pytest.fixture
def older(tmp_path: Path, database_url: str) -> Iterator[Database]:
    """A database as the third migration left it."""
    db = Database(database_url or f"sqlite:///{tmp_path / 'older.db'}")
    _migrate(db, "0003")
    yield db
    db.close()


def _migrate(db: Database, revision: str, *, up: bool = True) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with db.engine.begin() as connection:
        config.attributes["connection"] = connection
        (command.upgrade if up else command.downgrade)(config, revision)


def _add(session: sa.orm.Session, table: str, **given: object) -> None:
    """A row whose other required columns hold something."""
    declared = sa.Table(table, sa.MetaData(), autoload_with=session.connection())
    fill = {
        column.name: FILL.get(column.type.python_type, [])
        for column in declared.columns
        if not column.nullable and not (column.primary_key and column.name == "id")
    }
    session.execute(declared.insert().values({**fill, **given}))


def test_rows_of_an_older_version_keep_working(older: Database) -> None:
    with older.write() as session:
        for name in ("here", "there"):
            _add(session, "workspaces", id=name, name=name)
        _add(
            session, "repositories", id="r1", workspace_id="here", kind="internal", path="/old/data/repositories/r1.git"
        )
        _add(session, "repositories", id="r2", workspace_id="there", kind="external", path="/old/data/mirrors/r2.git")
        path = "/old/objects/datasets/data/objects/datasets/d1/u1.jsonl"
        _add(session, "datasets", id="d1", workspace_id="here", path=path)
        _add(session, "datasets", id="d2", workspace_id="there", path=None)
        for run, name, found in (("a", "x-1", path), ("b", "x-2", path), ("c", "x-3", "")):
            _add(session, "runs", id=run, workspace_id="here", name=name, kind="eval", dataset_path=found)
        _add(session, "rollouts", run_id="a", row_index=0, attempt=0, size=12, body="{}")
    older.migrate()
    with older.read() as session:
        paths = dict(session.execute(sa.select(tables.Repository.id, tables.Repository.path)).all())
        assert paths == {"r1": "repositories/r1.git", "r2": "mirrors/r2.git"}
        datasets = dict(session.execute(sa.select(tables.Dataset.id, tables.Dataset.path)).all())
        assert datasets == {"d1": "objects/datasets/d1/u1.jsonl", "d2": None}
        runs = dict(session.execute(sa.select(tables.Run.id, tables.Run.dataset_path)).all())
        assert runs == {"a": datasets["d1"], "b": datasets["d1"], "c": ""}
        assert session.execute(sa.select(tables.Rollout.run_id, tables.Rollout.body)).all() == [("a", "{}")]
    _migrate(older, "0003", up=False)
    older.migrate()


def test_a_platform_goes_on_in_a_data_folder_that_was_moved(ready, tmp_path: Path) -> None:
    """Its repository is synced, its dataset read, and a run submitted before finds both in the new place."""
    before = ready.json("POST", "eval-runs", json=_submit("sums"))
    ready.platform.db.close()
    settings = ready.platform.settings
    new = tmp_path / "elsewhere" / "data"
    new.parent.mkdir()
    shutil.move(settings.data_dir, new)
    moved = PlatformSettings(
        data_dir=new,
        worker=False,
        max_jobs=2,
        job_command=("sh", "-c", "sleep 60"),
        database_url=settings.database_url,
        environ=dict(settings.environ),
    )
    ready.platform = create_app(moved).state.platform
    ready.http.app.state.platform = ready.platform
    ready.anonymous.app.state.platform = ready.platform

    commit = ready.push({"rollouts/multiply/main.py": "print('changed')\n"})
    assert ready.json("GET", "sync")["last_synced_commit_sha"] == commit
    link = ready.json("GET", "datasets/sums/download")["presigned_url"]
    assert len(ready.anonymous.get(link.removeprefix(moved.url)).content.splitlines()) == 40
    after = ready.json("POST", "eval-runs", json=_submit("sums"))
    worker = Worker(ready.platform)
    assert worker.step()
    assert worker.step()
    for run, head in ((before, None), (after, commit)):
        spec = JobSpec.model_validate_json((new / "runs" / run["id"] / "job.json").read_text())
        assert Path(spec.repository).parent.parent == new
        assert (Path(spec.repository) / "HEAD").is_file()
        assert Path(spec.dataset_path).is_relative_to(new)
        assert len(Path(spec.dataset_path).read_text().splitlines()) == 40
        assert head in (None, spec.commit_sha)
    worker.stop()
    assert not settings.data_dir.exists()


def _submit(dataset: str) -> dict[str, object]:
    return {**BODY, "experiment_config": {**BODY["experiment_config"], "dataset": dataset}}  # type: ignore[dict-item]
