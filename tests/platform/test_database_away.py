"""A PostgreSQL that is down or frozen, behind a gate: requests get 503 with Retry-After, and go on afterwards."""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from osmosis.platform.app import create_app
from osmosis.platform.auth import tokens, users
from osmosis.platform.db import Database, find_unavailable
from osmosis.platform.settings import PlatformSettings

POSTGRES = os.environ.get("OSMOSIS_TEST_POSTGRES_URL", "")
pytestmark = pytest.mark.skipif(not POSTGRES, reason="needs a PostgreSQL: .ci/postgres makes one")


class Gate:
    """Passes bytes to PostgreSQL's socket while `open`, holds them while `frozen`, refuses everybody while `down`."""

    def __init__(self, target: sa.URL) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.state = "open"
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def shut(self) -> None:
        self.state = "down"
        for pair in self._pairs:
            for end in pair:
                end.close()

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            if self.state == "down":
                near.close()
                continue
            far = self._dial()
            self._pairs.append((near, far))
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _dial(self) -> socket.socket:
        folder = self._target.query.get("host")
        if not isinstance(folder, str):
            return socket.create_connection((self._target.host or "127.0.0.1", self._target.port or 5432))
        far = socket.socket(socket.AF_UNIX)
        far.connect(f"{folder}/.s.PGSQL.{self._target.port or 5432}")
        return far

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while piece := source.recv(65536):
                while self.state == "frozen":
                    time.sleep(0.05)
                sink.sendall(piece)
        except OSError:
            pass


@pytest.fixture
def gate() -> Iterator[tuple[Gate, str]]:
    name = f"osmosis_test_{uuid.uuid4().hex}"
    admin = sa.create_engine(POSTGRES, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    url = sa.make_url(POSTGRES)
    gate = Gate(url)
    through = url.set(database=name, host="127.0.0.1", port=gate.port, query={"sslmode": "disable"})
    yield gate, through.render_as_string(hide_password=False)
    with admin.connect() as connection:
        connection.execute(sa.text(f"DROP DATABASE {name} WITH (FORCE)"))


def test_requests_are_told_to_come_back_while_the_database_is_away(gate: tuple[Gate, str], tmp_path: Path) -> None:
    door, url = gate
    settings = PlatformSettings(
        data_dir=tmp_path,
        worker=False,
        database_url=url,
        database_limit_s=1.0,
        allowed_hosts=("testserver",),
        environ={"PATH": os.environ["PATH"]},
    )
    with TestClient(create_app(settings), raise_server_exceptions=False) as client:
        platform = client.app.state.platform  # type: ignore[attr-defined]  # Starlette's
        with platform.db.write() as session:
            token = tokens.issue(session, users.ensure_owner(session, "local"), "test").text
        client.headers["Authorization"] = f"Bearer {token}"
        assert client.get("/api/cli/verify").status_code == 200
        for state in ("down", "frozen", "down"):
            door.shut() if state == "down" else setattr(door, "state", state)
            for path, kind in (("/api/cli/verify", "json"), ("/", "html"), ("/v1/models", "json")):
                answer = client.get(path, headers={"Accept": "text/html" if kind == "html" else "*/*"})
                assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5"), (state, path, answer.text)
                assert "database does not answer" in answer.text
                assert kind in answer.headers["Content-Type"]
            assert client.get("/ready").status_code == 503
            door.state = "open"
            assert client.get("/api/cli/verify").status_code == 200


def test_a_statement_that_takes_too_long_is_ended_by_the_server(gate: tuple[Gate, str], tmp_path: Path) -> None:
    db = Database(gate[1], limit_s=0.5)
    with pytest.raises(sa.exc.OperationalError, match="statement timeout") as slow, db.read() as session:
        session.execute(sa.text("SELECT pg_sleep(30)"))
    assert find_unavailable(slow.value) is not None
    with db.read() as session:
        assert session.scalar(sa.text("SELECT 1")) == 1
    db.close()
