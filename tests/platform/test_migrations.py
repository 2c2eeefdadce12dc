"""Databases of other versions: those of 1.0 go on, others are refused in one sentence, no migration loses a row."""

from __future__ import annotations

import json
import shutil
import sqlite3
from datetime import datetime
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext

from osmosis.errors import Conflict
from osmosis.platform import tables
from osmosis.platform.db import HEAD, MIGRATIONS, Database
from osmosis.platform.security.tokens import hash_token
from osmosis.platform.services import rollouts, tokens
from osmosis.records.rollout import Rollout

OF_1_0 = Path(__file__).with_name("database_of_1_0.sql")
"""Dumped from a data folder that the migrations of 1.0 made."""
ROWS = """
INSERT INTO users VALUES ('u1', 'ada', 'ada@localhost', 'Ada', '2026-01-01 00:00:00');
INSERT INTO workspaces VALUES ('w1', 'here', '2026-01-01 00:00:00');
INSERT INTO members (workspace_id, user_id, role, created_at) VALUES ('w1', 'u1', 'owner', '2026-01-01 00:00:00');
"""


@pytest.fixture
def older(tmp_path: Path) -> Database:
    """A SQLite database of 1.0 with a workspace and its member."""
    path = tmp_path / "platform.db"
    with sqlite3.connect(path) as raw:
        raw.executescript(OF_1_0.read_text())
        raw.executescript(ROWS)
    raw.close()
    return Database(f"sqlite:///{path}")


def members(db: Database) -> list[str]:
    with db.read() as session:
        return list(session.scalars(sa.text("SELECT user_id FROM members")))


def test_a_database_of_1_0_goes_on_with_its_rows(older: Database) -> None:
    older.migrate()
    with older.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, tables.Base.metadata) == []
        assert context.get_current_revision() == HEAD
    assert members(older) == ["u1"]


def test_rollouts_of_1_0_get_keys(tmp_path: Path, database_url: str) -> None:
    """With rows that are equal, more rollouts than are read at once, and one that kept no hash of its row."""
    db = Database(database_url or f"sqlite:///{tmp_path / 'x.db'}")
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["engine"] = db.engine
    command.upgrade(config, "0004")
    before = sa.MetaData()
    before.reflect(db.engine)
    now = datetime(2026, 1, 1)
    run = {"id": "r1", "workspace_id": "w1", "created_at": now, "updated_at": now, "status": "finished", "name": "n"}
    rows = [(row, attempt) for row in range(300) for attempt in range(2)]
    with db.engine.begin() as connection:
        _insert(connection, before.tables["workspaces"], {"id": "w1", "name": "here", "created_at": now})
        _insert(connection, before.tables["runs"], run)
        for row, attempt in reversed(rows):
            hashes = {"hashes": {"row": "same" if row in (7, 250) else f"hash {row}"}} if row else {}
            body = json.dumps({"rollout_id": "x", "row_index": row, "attempt": attempt, "status": "success", **hashes})
            values = {"run_id": "r1", "rollout_id": "x", "row_index": row, "attempt": attempt, "body": body}
            _insert(connection, before.tables["rollouts"], {**values, "status": "success", "created_at": now})
    db.migrate()
    with db.read() as session:
        made = rollouts.keys(session, "r1")
        records = [Rollout.model_validate_json(text) for text in rollouts.with_bodies(session, "r1", limit=1000)]
    keys = {0: "@0", 7: "same", 250: "same#2"}
    assert made == [(0, keys.get(row, f"hash {row}"), attempt) for row, attempt in rows]
    assert [record.key for record in records] == made
    db.close()


def test_snapshots_of_earlier_runs_leave_their_config(tmp_path: Path, database_url: str) -> None:
    db = Database(database_url or f"sqlite:///{tmp_path / 'x.db'}")
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["engine"] = db.engine
    command.upgrade(config, "0005")
    before = sa.MetaData()
    before.reflect(db.engine)
    now = datetime(2026, 1, 1)
    run = {"workspace_id": "w1", "created_at": now, "updated_at": now, "status": "finished", "kind": "eval"}
    taken = {"parent": "abc", "files": ["a.py"], "diff": "+ x"}
    with db.engine.begin() as connection:
        _insert(connection, before.tables["workspaces"], {"id": "w1", "name": "here", "created_at": now})
        for name, advanced in (("with", {"base_url": "http://x", "snapshot": taken}), ("without", {})):
            values = {**run, "id": name, "name": name, "config": {"experiment": {}, "advanced": advanced}}
            _insert(connection, before.tables["runs"], values)
    db.migrate()
    with db.read() as session:
        found = {run.id: (run.snapshot, run.config) for run in session.scalars(sa.select(tables.Run))}
    assert found["with"] == (taken, {"experiment": {}, "advanced": {"base_url": "http://x"}})
    assert found["without"] == (None, {"experiment": {}, "advanced": {}})
    db.close()


def test_logins_of_earlier_versions_go_on_with_what_they_could(tmp_path: Path, database_url: str) -> None:
    db = Database(database_url or f"sqlite:///{tmp_path / 'x.db'}")
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["engine"] = db.engine
    command.upgrade(config, "0009")
    before = sa.MetaData()
    before.reflect(db.engine)
    with db.engine.begin() as connection:
        for number, handle in enumerate(("ada", "bob")):
            made = {"created_at": datetime(2026, 1, 1 + number), "email": handle, "handle": handle, "id": handle}
            _insert(connection, before.tables["users"], made)
        for kind in ("device", "personal", "session"):
            values = {"id": kind, "hash": hash_token(kind), "user_id": "ada", "kind": kind}
            _insert(connection, before.tables["tokens"], {**values, "created_at": datetime(2026, 1, 1)})
    db.migrate()
    with db.read() as session:
        found = {kind: tokens.authenticate(session, kind).scopes for kind in ("device", "personal", "session")}
        operators = dict(session.execute(sa.select(tables.User.id, tables.User.operator)).all())
    assert found == {"device": "api git inference", "personal": "api git", "session": "api"}
    assert operators == {"ada": True, "bob": False}
    db.close()


def test_runs_of_earlier_versions_get_their_job_with_its_lease(tmp_path: Path, database_url: str) -> None:
    db = Database(database_url or f"sqlite:///{tmp_path / 'x.db'}")
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["engine"] = db.engine
    command.upgrade(config, "0010")
    before = sa.MetaData()
    before.reflect(db.engine)
    now = datetime(2026, 1, 1)
    leased = {"lease_hash": "h", "lease_until": now, "worker": "here", "starts": 2, "handle": {"pid": 7}}
    runs = {
        "waits": {"status": "pending"},
        "works": {"status": "running", **leased},
        "lost": {"status": "running", "starts": 1},
        "done": {"status": "finished", "lease_hash": "old", "starts": 1},
        "uploaded": {"status": "finished", "imported": {"name": "x"}},
    }
    with db.engine.begin() as connection:
        _insert(connection, before.tables["workspaces"], {"id": "w1", "name": "here", "created_at": now})
        for name, values in runs.items():
            common = {"id": name, "name": name, "workspace_id": "w1", "created_at": now, "updated_at": now}
            _insert(connection, before.tables["runs"], {**common, **values})
    db.migrate()
    with db.read() as session:
        jobs = {job.run_id: job for job in session.scalars(sa.select(tables.Job))}
    assert {name: (job.state, job.starts) for name, job in jobs.items()} == {
        "waits": ("waiting", 0),
        "works": ("held", 2),
        "lost": ("waiting", 1),
        "done": ("over", 1),
    }
    works = jobs["works"]
    assert (works.lease_hash, works.worker, works.handle) == ("h", "here", {"pid": 7})
    assert works.lease_until is not None
    db.close()


def _insert(connection: sa.Connection, table: sa.Table, values: dict[str, object]) -> None:
    """One row, with something in every further column that has to have a value."""
    for column in table.columns:
        if column.nullable or column.name in values or column.primary_key:
            continue
        if isinstance(column.type, (sa.String, sa.Integer, sa.Float)):
            values[column.name] = "" if isinstance(column.type, sa.String) else 0
        else:
            values[column.name] = {} if isinstance(column.type, sa.JSON) else column.type.python_type()
    connection.execute(table.insert(), values)


@pytest.mark.parametrize("revision", ["0003", "9999"])
def test_a_revision_that_is_not_known_is_refused_in_one_sentence(older: Database, revision: str) -> None:
    with older.engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = :found"), {"found": revision})
    with pytest.raises(Conflict, match=f"the database is at revision {revision}") as refused:
        older.migrate()
    assert "OSMOSIS_DATA_DIR" in str(refused.value.hint)
    assert members(older) == ["u1"]


NEXT = '''"""{about}"""

import sqlalchemy as sa
from alembic import op

revision = "next"
down_revision = "{head}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("workspaces", recreate="always") as batch:
        batch.add_column(sa.Column("about", sa.Text()))
    {then}
'''


def upgrade(db: Database, folder: Path, then: str) -> None:
    """Runs our migrations and one more, which makes the table of workspaces anew and then does `then`."""
    shutil.copytree(MIGRATIONS, folder)
    (folder / "versions" / "next.py").write_text(NEXT.format(about="a test's", head=HEAD, then=then))
    config = Config()
    config.set_main_option("script_location", str(folder))
    config.attributes["engine"] = db.engine
    command.upgrade(config, "head")


def test_a_table_that_is_made_anew_keeps_what_refers_to_it(older: Database, tmp_path: Path) -> None:
    upgrade(older, tmp_path / "migrations", "pass")
    assert members(older) == ["u1"]
    with older.write() as session:
        assert session.execute(sa.text("SELECT name, about FROM workspaces")).all() == [("here", None)]
        with pytest.raises(sa.exc.IntegrityError, match="FOREIGN KEY"):
            session.execute(sa.text("UPDATE members SET workspace_id = 'nowhere'"))


def test_a_migration_that_leaves_a_row_without_its_parent_is_undone(older: Database, tmp_path: Path) -> None:
    with pytest.raises(Conflict, match="the first is row 1 of members, which refers to workspaces"):
        upgrade(older, tmp_path / "migrations", 'op.execute("DELETE FROM workspaces")')
    assert members(older) == ["u1"]
    with older.read() as session:
        assert session.execute(sa.text("SELECT * FROM workspaces")).mappings().one().keys() >= {"id", "name"}
        assert "about" not in session.execute(sa.text("SELECT * FROM workspaces")).keys()  # noqa: SIM118 - not a dict
