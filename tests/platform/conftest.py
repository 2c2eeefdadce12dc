"""A platform over a real database file (and over Postgres when a URL is given), with a pushed repository."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from osmosis.platform import Platform, tables
from osmosis.platform.app import create_app
from osmosis.platform.gitsync import syncing
from osmosis.platform.settings import PlatformSettings

POSTGRES = os.environ.get("OSMOSIS_TEST_POSTGRES_URL", "")
DATABASES = ["sqlite", *(["postgres"] if POSTGRES else [])]


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
        syncing.after_push(self.platform.db, self.platform.settings, repository.id)
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
    """A data folder made once, and the token that works in it."""

    folder: Path
    token: str

    def copy(self, folder: Path) -> Site:
        """The same platform elsewhere."""
        shutil.copytree(self.folder, folder)
        return _open(folder, "", self.token)


def _template(folder: Path, *, filled: bool) -> Template:
    site = _build(folder, "")
    if filled:
        _fill(site)
    site.platform.db.close()
    return Template(folder, site.http.headers["authorization"].partition(" ")[2])


@pytest.fixture(scope="session")
def plain_template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return _template(tmp_path_factory.mktemp("plain") / "data", filled=False)


@pytest.fixture(scope="session")
def ready_template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return _template(tmp_path_factory.mktemp("ready") / "data", filled=True)


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Empty for SQLite; for Postgres a database of its own."""
    if request.param == "sqlite":
        yield ""
        return
    name = f"osmosis_test_{uuid.uuid4().hex}"
    admin = sa.create_engine(POSTGRES, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    yield sa.make_url(POSTGRES).set(database=name).render_as_string(hide_password=False)
    with admin.connect() as connection:
        connection.execute(sa.text(f"DROP DATABASE {name} WITH (FORCE)"))
    admin.dispose()


@pytest.fixture
def site(tmp_path: Path, plain_template: Template, database_url: str) -> Iterator[Site]:
    """A platform with an empty workspace `demo`."""
    folder = tmp_path / "data"
    found = _build(folder, database_url) if database_url else plain_template.copy(folder)
    with found.http, found.anonymous:  # one event loop each, instead of one per request
        yield found


@pytest.fixture
def ready(tmp_path: Path, ready_template: Template, database_url: str) -> Iterator[Site]:
    """A platform with a pushed rollout `multiply` and a dataset `sums` of 40 rows."""
    folder = tmp_path / "data"
    found = _fill(_build(folder, database_url)) if database_url else ready_template.copy(folder)
    with found.http, found.anonymous:
        yield found


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, ready_template: Template) -> Iterator[Site]:
    """One platform as in `ready` for the tests of a file that only look or are refused."""
    found = ready_template.copy(tmp_path_factory.mktemp("shared") / "data")
    with found.http, found.anonymous:
        yield found
