"""Webhooks of Git Sync, and the repositories that it reads: forged, replayed, oversized, of another repository, and
addresses that lead to this machine."""

import hashlib
import hmac
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
import sqlalchemy as sa

from osmosis.errors import Forbidden
from osmosis.platform import tables
from osmosis.platform.auth import tokens, users
from osmosis.platform.git import mirror, repositories
from osmosis.platform.objects.parts import check_url
from osmosis.platform.workspaces import service as workspaces
from support.platform_app import RunningPlatform, running_platform

BODY = b'{"ref": "refs/heads/main"}'


class Host(BaseHTTPRequestHandler):
    """A git host that has nothing, and counts who asks."""

    def do_GET(self) -> None:
        self.server.requests.append(self.path)  # type: ignore[attr-defined]
        self.send_error(404)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def host() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Host)
    server.requests = []  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    with running_platform(tmp_path_factory.mktemp("webhooks") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def admin(platform: RunningPlatform) -> dict[str, str]:
    with platform.parts.db.write() as session:
        person = users.create_user(session, "mallory", email="m@localhost", name="Mallory")
        session.add(tables.Member(workspace_id=platform.workspace_id, user_id=person.id, role="admin"))
        return {"Authorization": f"Bearer {tokens.issue(session, person, 'test').text}"}


def connect(platform: RunningPlatform, workspace_id: str, url: str) -> str:
    with platform.parts.db.write() as session:
        workspace = session.get_one(tables.Workspace, workspace_id)
        row = repositories.connect_external(session, platform.parts.settings, workspace, url, trusted=True)
        return row.id


def signature(body: bytes, secret: str) -> dict[str, str]:
    return {"X-Hub-Signature-256": "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}


def webhook(platform: RunningPlatform, **headers: str) -> dict[str, str]:
    answer = httpx.get(f"{platform.url}/api/cli/webhook", headers={**platform.headers, **headers}, timeout=30)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize(
    "address",
    [
        "http://127.0.0.1:{port}/a/b.git", "http://localhost:{port}/a/b.git", "http://[::ffff:127.0.0.1]:{port}/a/b.git",
        "http://127.1:{port}/a/b.git", "http://0x7f000001:{port}/a/b.git", "http://2130706433:{port}/a/b.git",
        "http://0.0.0.0:{port}/a/b.git", "http://x.localhost:{port}/a/b.git", "git://127.0.0.1:{port}/a/b.git",
        "ssh://git@127.0.0.1:{port}/a/b.git", "http://169.254.169.254/latest/meta-data", "ext::sh -c true/a/b",
        "http://[64:ff9b::127.0.0.1]:{port}/a/b.git", "file:///etc/a/b", "/etc/ssl/certs", "-oProxyCommand=true/a/b",
        "http://example.com@127.0.0.1:{port}/a/b.git", "https://127.0.0.1:{port}/%2e%2e/a/b.git",
        "http://127.0.0.1:{port}#/a/b.git", "http://127.0.0.1:{port}/a/b.git?x=/c/d",
    ],
)  # fmt: skip
def test_an_admin_connects_nothing_of_this_machine(
    platform: RunningPlatform, host: ThreadingHTTPServer, admin: dict[str, str], address: str
) -> None:
    body = {"repository_url": address.format(port=host.server_port)}
    answer = httpx.post(f"{platform.url}/api/cli/workspaces/demo/connect", json=body, headers=admin, timeout=60)
    assert answer.status_code in (400, 403), answer.text
    assert host.requests == []
    with platform.parts.db.read() as session:
        assert session.scalars(sa.select(tables.Repository.kind)).all() == ["internal"]


def test_only_the_secret_of_a_repository_tells_of_it(platform: RunningPlatform, host: ThreadingHTTPServer) -> None:
    hosted = httpx.get(f"{platform.url}/api/cli/webhook", headers=platform.headers)
    assert hosted.status_code == 404
    with platform.parts.db.read() as session:
        hosted_id = session.scalars(sa.select(tables.Repository.id)).one()
    with platform.parts.db.write() as session:
        owner = users.ensure_owner(session, "local")
        other_id = workspaces.create(session, owner, "other").id
    url = f"http://127.0.0.1:{host.server_port}/team/code.git"
    for workspace_id in (platform.workspace_id, other_id):
        connect(platform, workspace_id, url)
    mine, other = webhook(platform), webhook(platform, **{"X-Osmosis-Workspace": "other"})
    assert mine["secret"] != other["secret"]

    def post(url: str, body: bytes, **headers: str) -> int:
        return httpx.post(url, content=body, headers=headers, timeout=30).status_code

    good = signature(BODY, mine["secret"])
    sha1 = hmac.new(mine["secret"].encode(), BODY, hashlib.sha1).hexdigest()
    forged = [
        (mine["url"], BODY, signature(BODY, other["secret"])), (other["url"], BODY, good),
        (mine["url"], BODY + b" ", good), (mine["url"], b"", good), (mine["url"], BODY, signature(BODY, "")),
        (mine["url"], BODY, {"X-Hub-Signature": f"sha1={sha1}"}),
        (mine["url"], BODY, {"X-Hub-Signature-256": "sha256="}),
        (mine["url"], BODY, {"X-Hub-Signature-256": good["X-Hub-Signature-256"].upper()}),
        (mine["url"], BODY, {"X-Gitlab-Token": other["secret"]}), (mine["url"], BODY, {"X-Gitlab-Token": "x"}),
        (mine["url"], BODY, {"Authorization": f"Bearer {mine['secret']}"}), (mine["url"], BODY, platform.headers),
        (f"{mine['url']}?secret={mine['secret']}", BODY, {}), (f"{platform.url}/hooks/%2e%2e", BODY, good),
        (f"{platform.url}/hooks/{hosted_id}", BODY, good), (f"{platform.url}/hooks/a|b", BODY, good),
    ]  # fmt: skip
    for address, body, headers in forged:
        assert post(address, body, **headers) in (401, 404), (address, headers)
    assert host.requests == [], "nothing was looked at"
    assert post(mine["url"], b" " * (1 << 21), **good) == 413
    assert httpx.get(mine["url"], headers=good).status_code == 405
    assert post(mine["url"], BODY, **good) == 202
    with pytest.raises(Forbidden):  # what signs one thing signs no other
        check_url(platform.parts, "datasets/x", method="GET", expires=1 << 40, signature=mine["secret"])
    connect(platform, platform.workspace_id, f"{url[:-4]}2.git")
    assert post(mine["url"], BODY, **good) == 404, "a repository that is no longer connected"
    assert webhook(platform)["secret"] != mine["secret"]


def test_a_message_that_is_sent_again_and_again_is_one_look(
    platform: RunningPlatform, host: ThreadingHTTPServer
) -> None:
    url = f"http://127.0.0.1:{host.server_port}/team/code.git"
    connect(platform, platform.workspace_id, url)
    told = webhook(platform)
    with platform.parts.db.read() as session:
        repository = session.scalars(sa.select(tables.Repository).where(tables.Repository.url == url)).one()
        place = mirror.RepositoryFolder.of(repository, platform.parts.settings)
    mirror.prepare(place, platform.parts.settings)

    def post(_: int) -> int:
        headers = signature(BODY, told["secret"])
        return httpx.post(told["url"], content=BODY, headers=headers, timeout=60).status_code

    with ThreadPoolExecutor(20) as many:
        with mirror.locked(place):
            assert set(many.map(post, range(100))) == {202}
            assert httpx.get(f"{platform.url}/health", timeout=20).status_code == 200
        assert post(0) == 202
        idle = threading.Event()
        for _ in range(200):
            before = len(host.requests)
            idle.wait(0.5)
            if before and before == len(host.requests):
                break
    assert 1 <= len(host.requests) <= 3, "one look was going on, one was waiting, one came after"
