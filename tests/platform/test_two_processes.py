"""Two platform processes on one PostgreSQL and one data folder, behind a proxy that gives each request to the other."""

from __future__ import annotations

import itertools
import os
import re
import socket
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from support.platform_process import PlatformProcess, until

ONE_EACH = httpx.Limits(max_keepalive_connections=0)
"""A connection for each request."""
POSTGRES = os.environ.get("OSMOSIS_TEST_POSTGRES_URL", "")
pytestmark = [pytest.mark.skipif(not POSTGRES, reason="needs a PostgreSQL: .ci/postgres makes one"), pytest.mark.slow]


class TurnTaker:
    """A proxy: each connection goes to the next of the processes that answer."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.ports: list[int] = []
        self.served: dict[int, int] = {}
        self._turn = itertools.count()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._join, args=(near,), daemon=True).start()

    def _join(self, near: socket.socket) -> None:
        for _ in self.ports:
            port = self.ports[next(self._turn) % len(self.ports)]
            try:
                far = socket.create_connection(("127.0.0.1", port))
            except OSError:  # it is gone: the next one
                continue
            self.served[port] = self.served.get(port, 0) + 1
            threading.Thread(target=_pass, args=(far, near), daemon=True).start()
            return _pass(near, far)
        return near.close()

    def close(self) -> None:
        self._listener.close()


def _pass(source: socket.socket, sink: socket.socket) -> None:
    try:
        while piece := source.recv(65536):
            sink.sendall(piece)
    except OSError:
        pass
    for one in (source, sink):
        try:
            one.shutdown(socket.SHUT_RDWR)
        except OSError:
            one.close()


@pytest.fixture
def database() -> Iterator[str]:
    name = f"osmosis_test_{uuid.uuid4().hex}"
    admin = sa.create_engine(POSTGRES, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    yield sa.make_url(POSTGRES).set(database=name).render_as_string(hide_password=False)
    with admin.connect() as connection:
        connection.execute(sa.text(f"DROP DATABASE {name} WITH (FORCE)"))
    admin.dispose()


@pytest.fixture
def pair(database: str, tmp_path: Path) -> Iterator[tuple[PlatformProcess, PlatformProcess, TurnTaker]]:
    """The first runs jobs, the second does not; their client speaks to the proxy, a connection for each request."""
    proxy = TurnTaker()
    given = {"database_url": database, "public_url": proxy.url}
    first = PlatformProcess(tmp_path / "data", **given)
    second = PlatformProcess(tmp_path / "data", no_worker="", **given)
    try:
        first.start()
        second.start()
        proxy.ports = [first.port, second.port]
        first.http = httpx.Client(base_url=proxy.url, trust_env=False, timeout=20, limits=ONE_EACH)
        first.login()
        yield first, second, proxy
    finally:
        second.end()
        first.end()
        proxy.close()


def test_requests_that_alternate_between_two_processes_are_served_as_by_one(
    pair: tuple[PlatformProcess, PlatformProcess, TurnTaker], tmp_path: Path
) -> None:
    both, second, proxy = pair
    both.prepare(tmp_path / "checkout")  # a push and an upload, request by request
    name = both.submit()
    seen = _events(both, both.run(name)["id"], second.port)
    until(lambda: both.run(name)["status"] == "finished", "the run ends")
    assert seen.endswith("event: end"), "the process that runs no job followed it to its end"
    assert all(proxy.served.get(port, 0) >= 5 for port in proxy.ports), proxy.served

    # a login is begun, approved in a browser and taken, each at another process
    started = both.json("POST", "device/authorize", json={"deviceName": "laptop"})
    with httpx.Client(base_url=proxy.url, trust_env=False, limits=ONE_EACH, follow_redirects=True) as browser:
        link = browser.get(both.json("POST", "browser-login", json={})["url"])
        browser.post("/login/link", data=_fields(link.text)).raise_for_status()
        asked = browser.get("/device", params={"user_code": started["user_code"]})
        approved = browser.post("/device", data={**_fields(asked.text), "answer": "approve"})
        assert approved.status_code == 200, approved.text
    issued = both.json("POST", "device/token", json={"device_code": started["device_code"]})
    assert issued["token"]
    for _ in range(4):
        asked = httpx.get(f"{proxy.url}/api/cli/verify", headers={"Authorization": f"Bearer {issued['token']}"})
        assert asked.status_code == 200


def test_either_process_may_go_and_the_other_goes_on(
    pair: tuple[PlatformProcess, PlatformProcess, TurnTaker], tmp_path: Path
) -> None:
    both, second, _ = pair
    both.prepare(tmp_path / "checkout")
    second.kill()
    name = both.submit()
    until(lambda: both.run(name)["status"] == "finished", "the run ends without the second")
    second.start()
    client, both.http = both.http, httpx.Client(base_url=f"http://127.0.0.1:{both.port}", trust_env=False)
    both.kill()
    both.http, both_http = client, both.http
    waiting = both.submit()
    assert both.run(waiting)["status"] == "pending", "the second answers alone"
    both.http = both_http
    both.start()
    both.http = client
    until(lambda: both.run(waiting)["status"] == "finished", "the run ends once there is a worker again")


def _events(both: PlatformProcess, run_id: str, port: int) -> str:
    """What a page that is open at one process hears, until the run is over."""
    headers = {"Authorization": both.http.headers["authorization"], "Host": both.http.base_url.netloc.decode()}
    heard = []
    with httpx.stream("GET", f"http://127.0.0.1:{port}/runs/{run_id}/events", headers=headers, timeout=60) as stream:
        assert stream.status_code == 200
        for line in stream.iter_lines():
            heard.append(line)
            if line == "event: end":
                break
    return "\n".join(heard)


def _fields(page: str) -> dict[str, str]:
    """The hidden fields of a page's forms."""
    inputs = re.findall(r"<input[^>]*hidden[^>]*>", page)
    pairs = [(re.search(r'name="([^"]+)"', one), re.search(r'value="([^"]*)"', one)) for one in inputs]
    return {name[1]: value[1] for name, value in pairs if name and value}
