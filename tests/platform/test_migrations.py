"""Databases of other versions: those of 1.0 go on, others are refused in one sentence, no migration loses a row."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
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
from osmosis.platform.auth import tokens
from osmosis.platform.auth.tokens import hash_token
from osmosis.platform.db import HEAD, MIGRATIONS, Database
from osmosis.platform.runs import rollouts
from osmosis.records.run.rollout import Rollout

SAMPLES = {revision: Path(__file__).with_name(f"database_{revision}.sql") for revision in ("0004", "0026")}
"""Dumps of databases that other versions made: 0004 is from before 1.0.0, 0026 is 1.0.0."""
ROWS = """
INSERT INTO users VALUES ('u1', 'ada', 'ada@localhost', 'Ada', '2026-01-01 00:00:00');
INSERT INTO workspaces VALUES ('w1', 'here', '2026-01-01 00:00:00');
INSERT INTO members (workspace_id, user_id, role, created_at) VALUES ('w1', 'u1', 'owner', '2026-01-01 00:00:00');
"""


@pytest.fixture
def older(tmp_path: Path) -> Database:
    """A SQLite database of 0004 with a workspace and its member."""
    db = load_sample(tmp_path, "0004")
    with closing(sqlite3.connect(tmp_path / "platform.db")) as raw:
        raw.executescript(ROWS)
    return db


def load_sample(folder: Path, revision: str) -> Database:
    with closing(sqlite3.connect(folder / "platform.db")) as raw:
        raw.executescript(SAMPLES[revision].read_text())
    return Database(f"sqlite:///{folder / 'platform.db'}")


def members(db: Database) -> list[str]:
    with db.read() as session:
        return list(session.scalars(sa.text("SELECT user_id FROM members")))


def check_schema(db: Database) -> None:
    with db.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, tables.Base.metadata) == []
        assert context.get_current_revision() == HEAD


def test_a_database_of_0004_goes_on_with_its_rows(older: Database) -> None:
    older.migrate()
    check_schema(older)
    assert members(older) == ["u1"]


def test_a_database_of_1_0_0_goes_on_with_its_rows(tmp_path: Path) -> None:
    db = load_sample(tmp_path, "0026")
    db.migrate()
    check_schema(db)
    with db.read() as session:
        counts = {
            mapper.class_.__tablename__: len(session.scalars(sa.select(mapper.class_)).all())
            for mapper in tables.Base.registry.mappers
        }
        run = session.scalars(sa.select(tables.Run)).one()
        job = session.scalars(sa.select(tables.Job)).one()
        records = [Rollout.model_validate_json(text) for text in rollouts.list_bodies(session, run.id, limit=10)]
    assert {table: count for table, count in counts.items() if count} == {
        "datasets": 1, "jobs": 1, "members": 1, "rollouts": 2, "run_events": 3, "run_logs": 1, "runs": 1, "secrets": 1,
        "tokens": 1, "users": 1, "workers": 1, "workspaces": 1,
    }  # fmt: skip
    assert (run.name, run.status, job.state, job.worker) == ("multiply-1", "running", "held", "w1")
    assert [record.key for record in records] == rollouts_keys(db, run.id)


def test_deployments_and_merges_of_1_0_leave_the_table_of_runs(tmp_path: Path, database_url: str) -> None:
    db = Database(database_url or f"sqlite:///{tmp_path / 'x.db'}")
    db.migrate("0026")
    before = sa.MetaData()
    before.reflect(db.engine)
    now = datetime(2026, 1, 1)
    common = {"workspace_id": "w1", "created_at": now, "updated_at": now, "status": "running"}
    with db.engine.begin() as connection:
        _insert(connection, before.tables["workspaces"], {"id": "w1", "name": "here", "created_at": now})
        for number, (kind, config) in enumerate(
            {"eval": {}, "serving": {"model": "m"}, "merge": {"model": "adapter-1", "dtype": "bf16"}}.items(), 1
        ):
            run = {**common, "id": f"{kind}-id", "kind": kind, "name": "m", "config": config, "priority": number}
            _insert(connection, before.tables["runs"], run)
            job = {"id": f"{kind}-job", "run_id": f"{kind}-id", "state": "held", "lease_hash": kind, "starts": 2}
            _insert(connection, before.tables["jobs"], job)
            for table in ("run_logs", "run_events"):
                _insert(connection, before.tables[table], {"run_id": f"{kind}-id", "timestamp": now, "status": "x"})
    db.migrate()
    check_schema(db)
    with db.write() as session:
        jobs = {job.kind: job for job in session.scalars(sa.select(tables.Job))}
        deployment, merge = (
            session.scalars(sa.select(tables.Deployment)).one(),
            session.scalars(sa.select(tables.Merge)).one(),
        )
        runs = session.scalars(sa.select(tables.Run)).all()
        lines = [line.work_id for line in session.scalars(sa.select(tables.RunLog).order_by(tables.RunLog.id))]
        session.add(tables.RunLog(**deployment.reference, message="the next id is free"))
    assert [run.id for run in runs] == ["eval-id"]
    assert (deployment.id, deployment.name, deployment.status) == ("serving-id", "m", "running")
    assert (merge.id, merge.adapter, merge.dtype) == ("merge-id", "adapter-1", "bf16")
    assert {kind: (job.work_id, job.lease_hash, job.priority) for kind, job in jobs.items()} == {
        kind: (f"{kind}-id", kind, number) for number, kind in enumerate(("eval", "serving", "merge"), 1)
    }
    assert (jobs["serving"].deployment_id, jobs["merge"].merge_id, jobs["serving"].run_id) == (
        "serving-id",
        "merge-id",
        None,
    )
    assert lines == ["eval-id", "serving-id", "merge-id"]
    db.close()


def rollouts_keys(db: Database, run_id: str) -> list[tuple[int, str, int]]:
    with db.read() as session:
        return rollouts.list_keys(session, run_id)


def list_tables(db: Database) -> dict[str, object]:
    reader = sa.inspect(db.engine)
    return {
        name: [
            sorted([column["name"], str(column["type"]), column["nullable"], column["default"]] for column in columns),
            sorted(map(str, reader.get_foreign_keys(name))),
            sorted(map(str, reader.get_indexes(name))),
            sorted(map(str, reader.get_unique_constraints(name))),
            reader.get_pk_constraint(name),
        ]
        for name in sorted(reader.get_table_names())
        for columns in [reader.get_columns(name)]
    }


def test_an_empty_database_gets_the_tables_that_all_migrations_make(tmp_path: Path, database_url: str) -> None:
    db = Database(database_url or f"sqlite:///{tmp_path / 'x.db'}")
    db.migrate()
    check_schema(db)
    created = list_tables(db)
    tables.Base.metadata.drop_all(db.engine)
    with db.write() as session:
        session.execute(sa.text("DROP TABLE alembic_version"))
    db.migrate("0004")
    db.migrate()
    check_schema(db)
    assert list_tables(db) == created
    db.close()


def test_rollouts_of_1_0_get_keys(tmp_path: Path, database_url: str) -> None:
    """With rows that are equal, more rollouts than are read at once, and one that kept no hash of its row."""
    db = Database(database_url or f"sqlite:///{tmp_path / 'x.db'}")
    db.migrate("0004")
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
        made = rollouts.list_keys(session, "r1")
        records = [Rollout.model_validate_json(text) for text in rollouts.list_bodies(session, "r1", limit=1000)]
    keys = {0: "@0", 7: "same", 250: "same#2"}
    assert made == [(0, keys.get(row, f"hash {row}"), attempt) for row, attempt in rows]
    assert [record.key for record in records] == made
    db.close()


def test_snapshots_of_earlier_runs_leave_their_config(tmp_path: Path, database_url: str) -> None:
    db = Database(database_url or f"sqlite:///{tmp_path / 'x.db'}")
    db.migrate("0004")
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
    db.migrate("0004")
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
    db.migrate("0004")
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
    values = {name: value for name, value in values.items() if name in table.c}
    for column in table.columns:
        if column.nullable or column.name in values or column.primary_key:
            continue
        if isinstance(column.type, (sa.String, sa.Integer, sa.Float)):
            values[column.name] = "" if isinstance(column.type, sa.String) else 0
        else:
            values[column.name] = {} if isinstance(column.type, sa.JSON) else column.type.python_type()
    connection.execute(table.insert(), values)


@pytest.mark.parametrize(
    ("revision", "hint"), [("0003", "OSMOSIS_DATA_DIR"), ("9999", "OSMOSIS_DATA_DIR"), ("0012", "osmosis 1.0.0 once")]
)
def test_a_revision_that_is_not_known_is_refused_in_one_sentence(older: Database, revision: str, hint: str) -> None:
    with older.engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = :found"), {"found": revision})
    with pytest.raises(Conflict, match=f"the database is at revision {revision}") as refused:
        older.migrate()
    assert hint in str(refused.value.hint)
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
