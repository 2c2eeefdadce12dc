"""The database itself: migrations equal the tables, times keep their zone, one writer at a time, nothing half-done."""

from __future__ import annotations

import threading

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from osmosis.platform import tables
from osmosis.platform.auth import users
from osmosis.platform.db import HEAD, MIGRATIONS, Database
from osmosis.records.base import utc_now


@pytest.fixture
def db(tmp_path, database_url):
    found = Database(database_url or f"sqlite:///{tmp_path / 'x.db'}")
    found.migrate()
    yield found
    found.close()


def test_the_migrations_lead_to_the_tables_as_declared(db) -> None:
    with db.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, tables.Base.metadata) == []


def test_the_newest_migration_is_the_one_a_start_compares_with() -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    assert ScriptDirectory.from_config(config).get_current_head() == HEAD


def test_migrating_again_and_from_many_threads_changes_nothing(db) -> None:
    failures: list[BaseException] = []

    def migrate() -> None:
        try:
            db.migrate()
        except Exception as error:  # noqa: BLE001 - a thread's failure is asserted below
            failures.append(error)

    threads = [threading.Thread(target=migrate) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []


def test_a_time_comes_back_as_it_went_in(db) -> None:
    now = utc_now()
    with db.write() as session:
        session.add(tables.User(handle="a", email="a@localhost", name="A", created_at=now))
    with db.read() as session:
        assert session.scalars(sa.select(tables.User.created_at)).one() == now


def test_a_block_that_raises_leaves_nothing(db) -> None:
    def half() -> None:
        with db.write() as session:
            users.create_user(session, "a", email="a@localhost", name="A")
            raise RuntimeError("halfway")

    with pytest.raises(RuntimeError):
        half()
    with db.read() as session:
        assert session.scalars(sa.select(tables.User)).all() == []


def test_a_reader_does_not_wait_for_a_writer(db) -> None:
    with db.write() as writing:
        users.create_user(writing, "a", email="a@localhost", name="A")
        with db.read() as reading:
            assert reading.scalars(sa.select(tables.User)).all() == []


def test_two_writers_take_turns(db) -> None:
    with db.write() as session:
        users.create_user(session, "n", email="n@localhost", name="0")

    def add() -> None:
        for _ in range(20):
            with db.write() as session:
                user = session.scalars(sa.select(tables.User).with_for_update()).one()
                user.name = str(int(user.name) + 1)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    with db.read() as session:
        assert session.scalars(sa.select(tables.User.name)).one() == "80"
