"""A platform over a real database file (and over Postgres when a URL is given), with a pushed repository."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from osmosis.platform import Platform, tables
from osmosis.platform.app import create_app
from osmosis.platform.git import sync
from osmosis.platform.settings import PlatformSettings

POSTGRES = os.environ.get("OSMOSIS_TEST_POSTGRES_URL", "")
DATABASES = ["sqlite", *(["postgres"] if POSTGRES else [])]
ON_SQLITE = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
"""For tests whose queries others ask of each kind of database, and that look at something else."""


@dataclass
class Site:
    """A platform and a client of its owner inside workspace `demo`."""

    platform: Platform
    http: TestClient
    """Sends the token and the workspace header."""
    anonymous: TestClient

    def json(self, method: str, path: str, expect: int = 200, **kwargs: Any) -> Any:
        answer = self.http.request(method, path if path.startswith("/") else f"/api/cli/{path}", **kwargs)
        assert answer.status_code == expect, answer.text
        return answer.json() if answer.content else None

    def stored(self, query: sa.Select[Any]) -> list[Any]:
        """The rows that the database has, or the values of one column."""
        with self.platform.db.read() as session:
            return list(session.scalars(query))

    def only(self, query: sa.Select[Any]) -> Any:
        (found,) = self.stored(query)
        return found

    def row(self, table: type[Any], id: str, **more: Any) -> Any:
        with self.platform.db.read() as session:
            return session.get_one(table, id, **more)

    @property
    def workspace_id(self) -> str:
        return str(self.only(sa.select(tables.Workspace.id).where(tables.Workspace.name == "demo")))

    def announce(self, name: str, content: bytes, extension: str = "jsonl", **extra: Any) -> dict[str, Any]:
        """Create the dataset and send its file, in one piece or in parts as told; not completed."""
        body = {"file_name": name, "file_size": len(content), "extension": extension, **extra}
        created: dict[str, Any] = self.json("POST", "datasets", json=body)
        upload = created["upload"]
        size = upload.get("part_size") or len(content)
        for number, part in enumerate(upload.get("presigned_urls") or [upload]):
            piece = content[number * size : (number + 1) * size]
            sent = self.anonymous.put(path_of(part["presigned_url"]), content=piece)
            assert sent.status_code == 200, sent.text
            assert sent.headers["ETag"]
        return created

    def complete(self, created: dict[str, Any], expect: int = 200) -> dict[str, Any]:
        return self.json("POST", f"datasets/{created['id']}/complete", expect=expect, json={})

    def upload(self, name: str, content: bytes, extension: str = "jsonl", **extra: Any) -> dict[str, Any]:
        return self.complete(self.announce(name, content, extension, **extra))

    def push(self, files: dict[str, str], branch: str = "main") -> str:
        """Commit files to the workspace's repository, push and sync; the commit is the answer."""
        with self.platform.db.read() as session:
            repository = session.scalars(sa.select(tables.Repository)).one()
        checkout = self.platform.settings.data_dir / "checkout"
        if not checkout.exists():
            checkout.mkdir()
            _git(checkout, "init", "-q", "-b", branch)
        elif _git(checkout, "branch", "--show-current") != branch:
            _git(checkout, "switch", "-q", "-c", branch)
        for name, text in files.items():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            (checkout / name).write_text(text)
        _git(checkout, "add", "-A")
        _git(checkout, "-c", "user.name=T", "-c", "user.email=t@localhost", "commit", "-q", "-m", "a change")
        _git(checkout, "push", "-q", str(self.platform.settings.located(repository.path)), branch)
        sync.poll(self.platform.db, self.platform.settings, repository.id, kind="internal")
        return _git(checkout, "rev-parse", "HEAD")


def path_of(url: str) -> str:
    """A signed URL as the in-process client wants it."""
    return "/" + url.split("/", 3)[3]


def _git(folder: Path, *args: str) -> str:
    done = subprocess.run(["git", *args], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


ROLLOUT = {
    "rollouts/multiply/main.py": "print('never run by the platform')\n",
    "rollouts/multiply/pyproject.toml": "[project]\nname = 'multiply'\nversion = '0'\n",
}


def rows_of(count: int) -> bytes:
    """A dataset of this many rows."""
    lines = [{"user_prompt": f"What is {n} x 2?", "ground_truth": str(n * 2)} for n in range(count)]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def _settings(folder: Path, database_url: str) -> PlatformSettings:
    environ = {"PATH": os.environ["PATH"]}
    return PlatformSettings(
        data_dir=folder, worker=False, database_url=database_url, allowed_hosts=("testserver",), environ=environ
    )


def _open(folder: Path, database_url: str, token: str) -> Site:
    app = create_app(_settings(folder, database_url))
    headers = {"Authorization": f"Bearer {token}", "X-Osmosis-Workspace": "demo"}
    http = TestClient(app, headers=headers, raise_server_exceptions=False)
    return Site(app.state.platform, http, TestClient(app, raise_server_exceptions=False))


def _build(folder: Path, database_url: str) -> Site:
    """A new platform with workspace `demo`."""
    app = create_app(_settings(folder, database_url))
    anonymous = TestClient(app)
    token = anonymous.post(
        "/api/cli/bootstrap",
        json={"deviceName": "test"},
        headers={"Authorization": f"Bearer {(folder / 'bootstrap.token').read_text().strip()}"},
    ).json()["token"]
    made = anonymous.post("/api/cli/workspaces", json={"name": "demo"}, headers={"Authorization": f"Bearer {token}"})
    assert made.status_code == 200, made.text
    app.state.platform.db.close()
    return _open(folder, database_url, token)


def _fill(site: Site) -> Site:
    """A pushed rollout and a dataset."""
    site.push(ROLLOUT)
    site.upload("sums", rows_of(40))
    return site


@dataclass
class Template:
    """A data folder and its database, made once, and the token that works in them."""

    folder: Path
    database_url: str
    """Empty for SQLite, whose file lies in the folder."""
    token: str

    def copy(self, folder: Path, database_url: str = "") -> Site:
        """The same platform elsewhere; with PostgreSQL, over that database, which is a copy of the template's."""
        shutil.copytree(self.folder, folder)
        return _open(folder, database_url, self.token)


TakeTemplate = Callable[[str, bool], Template]
"""The template for a kind of database, filled or not."""


@contextmanager
def _admin() -> Iterator[sa.Connection]:
    """A connection to the PostgreSQL of the tests that may make databases."""
    engine = sa.create_engine(POSTGRES, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def _new_database(connection: sa.Connection, template: str = "") -> str:
    name = f"osmosis_test_{uuid.uuid4().hex}"
    connection.execute(sa.text(f"CREATE DATABASE {name}" + (f" TEMPLATE {template}" if template else "")))
    return sa.make_url(POSTGRES).set(database=name).render_as_string(hide_password=False)


def _drop_database(connection: sa.Connection, url: str) -> None:
    connection.execute(sa.text(f"DROP DATABASE {sa.make_url(url).database} WITH (FORCE)"))


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TakeTemplate]:
    """Each made when first asked for: migrations, a first user and a push take a second, a copy a tenth of it."""
    made: dict[tuple[str, bool], Template] = {}

    def take(kind: str, filled: bool) -> Template:
        if (kind, filled) not in made:
            url = ""
            if kind == "postgres":
                with _admin() as connection:
                    url = _new_database(connection)
            site = _build(tmp_path_factory.mktemp("template") / "data", url)
            if filled:
                _fill(site)
            site.platform.db.close()
            token = site.http.headers["authorization"].partition(" ")[2]
            made[kind, filled] = Template(site.platform.settings.data_dir, url, token)
        return made[kind, filled]

    yield take
    for template in made.values():
        if template.database_url:
            with _admin() as connection:
                _drop_database(connection, template.database_url)


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest) -> str:
    """The kind of database that a test runs on: on each of them in turn."""
    return str(request.param)


@pytest.fixture
def database_url(database: str) -> Iterator[str]:
    """An empty database: an empty URL for SQLite, for PostgreSQL that of one of its own."""
    if database == "sqlite":
        yield ""
        return
    with _admin() as connection:
        url = _new_database(connection)
        yield url
        _drop_database(connection, url)


@contextmanager
def _running(site: Site) -> Iterator[Site]:
    """One start of the platform and one event loop for both clients, instead of one loop per request."""
    with site.http:
        site.anonymous.portal = site.http.portal
        yield site
        site.anonymous.portal = None


@contextmanager
def _copy(template: Template, folder: Path) -> Iterator[Site]:
    if not template.database_url:
        with _running(template.copy(folder)) as found:
            yield found
        return
    with _admin() as connection:
        url = _new_database(connection, str(sa.make_url(template.database_url).database))
        with _running(template.copy(folder, url)) as found:
            yield found
        _drop_database(connection, url)


@pytest.fixture
def site(tmp_path: Path, templates: TakeTemplate, database: str) -> Iterator[Site]:
    """A platform with an empty workspace `demo`."""
    with _copy(templates(database, False), tmp_path / "data") as found:
        yield found


@pytest.fixture
def ready(tmp_path: Path, templates: TakeTemplate, database: str) -> Iterator[Site]:
    """A platform with a pushed rollout `multiply` and a dataset `sums` of 40 rows."""
    with _copy(templates(database, True), tmp_path / "data") as found:
        yield found


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, templates: TakeTemplate) -> Iterator[Site]:
    """One platform as in `ready` for the tests of a file that only look or are refused."""
    with _copy(templates("sqlite", True), tmp_path_factory.mktemp("shared") / "data") as found:
        yield found
