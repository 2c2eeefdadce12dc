"""What may be fetched, by whom: paths, private addresses, redirects, secrets, webhooks."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from osmosis.base.git import Git, GitError
from osmosis.errors import Forbidden, UsageError, ValidationError
from osmosis.platform import tables
from osmosis.platform.git import mirror, repositories, sync
from osmosis.platform.git.mirror import Remote, reaching
from osmosis.platform.settings import PlatformSettings
from support.platform_app import RunningPlatform, running_platform
from support.platform_process import until
from support.receivers import Answer, Asked, site

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n-----END OPENSSH PRIVATE KEY-----"


def settings_of(folder: Path, **more: object) -> PlatformSettings:
    return PlatformSettings(data_dir=folder / "data", environ={"PATH": os.environ["PATH"], "HOME": "/home/op"}, **more)


def environ_of(remote: Remote, settings: PlatformSettings) -> dict[str, str]:
    with reaching(remote, settings) as environ:
        return environ


def pairs(environ: dict[str, str]) -> dict[str, str]:
    """Return git's configuration in an environment."""
    count = int(environ["GIT_CONFIG_COUNT"])
    return {environ[f"GIT_CONFIG_KEY_{n}"]: environ[f"GIT_CONFIG_VALUE_{n}"] for n in range(count)}


def test_a_path_of_the_machine_is_for_who_runs_it_and_never_in_the_data_folder(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    bare = tmp_path / "ann" / "origin.git"
    with pytest.raises(Forbidden, match="only by an operator of the platform"):
        environ_of(Remote(str(bare)), settings)
    assert environ_of(Remote(str(bare), trusted=True), settings)["HOME"] == "/home/op"
    (tmp_path / "way").symlink_to(tmp_path / "data")
    for inside in ("data/repositories/x.git", "way/repositories/x.git", "ann/../data/x/y"):
        for url in (str(tmp_path / inside), f"file://{tmp_path / inside}"):
            with pytest.raises(ValidationError, match="inside the platform's own data folder"):
                environ_of(Remote(url, trusted=True), settings)
    with pytest.raises(ValidationError, match="only when the platform listens on loopback"):
        environ_of(Remote(str(bare), trusted=True), settings_of(tmp_path, host="0.0.0.0"))


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1/a/b.git", "https://localhost/a/b.git", "https://10.0.0.1/a/b", "https://169.254.169.254/a/b",
        "https://[::1]/a/b.git", "https://[::ffff:10.0.0.1]/a/b", "ssh://git@192.168.1.1/a/b", "git@127.0.0.1:a/b.git",
        "https://0.0.0.0/a/b", "https://100.64.0.1/a/b", "git://172.16.0.1/a/b", "https://2130706433/a/b",
        "https://[64:ff9b::169.254.169.254]/a/b", "https://[::127.0.0.1]/a/b", "https://[2002:7f00:1::]/a/b",
        "https://[fec0::1]/a/b", "https://192.0.0.192/a/b", "https://168.63.129.16/a/b", "https://0x7f.1/a/b",
    ],
)  # fmt: skip
def test_private_addresses_are_out_of_reach_unless_allowed(tmp_path: Path, url: str) -> None:
    with pytest.raises(ValidationError, match=r"not a public address|cannot be resolved"):
        environ_of(Remote(url), settings_of(tmp_path))
    with pytest.raises(ValidationError, match=r"not a public address|cannot be resolved"):
        environ_of(Remote(url, trusted=True), settings_of(tmp_path, host="0.0.0.0"))


def test_git_is_held_to_the_address_that_was_judged(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, remote_allow=("127.0.0.1", "localhost"))
    config = pairs(environ_of(Remote("https://localhost:8443/a/b"), settings))
    assert config["http.curloptResolve"].startswith("localhost:8443:")
    assert "127.0.0.1" in config["http.curloptResolve"]
    assert config["http.followRedirects"] == "false"
    for written in ("git://localhost/a/b", "git://localhost:9418/a/b"):
        remapped = pairs(environ_of(Remote(written), settings))
        (key,) = [key for key, value in remapped.items() if key.endswith(".insteadOf") and written.startswith(value)]
        assert key in ("url.git://127.0.0.1:9418/.insteadOf", "url.git://[::1]:9418/.insteadOf")
    ssh = environ_of(Remote("git@localhost:a/b.git", credential=KEY), settings)["GIT_SSH_COMMAND"]
    assert "HostKeyAlias=localhost" in ssh
    assert "HostName=127.0.0.1" in ssh or "HostName=::1" in ssh


def test_a_secret_is_in_no_word_of_a_command_and_in_no_url(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, remote_allow=("127.0.0.1",))
    for given, pair in (("tok-canary", "x-access-token:tok-canary"), ("me:tok-canary", "me:tok-canary")):
        remote = Remote("https://127.0.0.1/a/b.git", credential=given)
        environ = environ_of(remote, settings)
        expected = f"Authorization: Basic {base64.b64encode(pair.encode()).decode()}"
        assert pairs(environ)["http.extraHeader"] == expected
        assert "tok-canary" not in repr(remote)
        assert environ["HOME"] == "/nonexistent"  # and none of the operator's own
    with reaching(Remote("git@127.0.0.1:a/b.git", credential=KEY), settings) as environ:
        words = environ["GIT_SSH_COMMAND"]
        path = Path(words.split("-i ")[1].split()[0])
        assert path.read_text().strip() == KEY
        assert path.stat().st_mode & 0o777 == 0o600
        assert "abc" not in words
    assert not path.exists()


@pytest.mark.parametrize(
    ("url", "credential", "why"),
    [
        ("http://127.0.0.1/a/b", "token", "in the open"),
        ("https://127.0.0.1/a/b", KEY, "is for ssh"),
        ("git@127.0.0.1:a/b", "token", "not a private key"),
    ],
)
def test_a_secret_that_does_not_fit_the_address_is_refused(tmp_path: Path, url: str, credential: str, why: str) -> None:
    settings = settings_of(tmp_path, remote_allow=("127.0.0.1",))
    with pytest.raises(ValidationError, match=why):
        environ_of(Remote(url, credential=credential), settings)


@contextlib.contextmanager
def redirecting(to: str) -> Iterator[tuple[str, list[str]]]:
    """A server that redirects everybody, and the requests that it got."""
    asked: list[str] = []

    def lead_away(request: Asked) -> Answer:
        asked.append(request.path)
        return 302, {"Location": f"{to}{request.path}"}, b""

    with site(lead_away) as url:
        yield url, asked


def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, remote_allow=("127.0.0.1",))
    with redirecting("http://127.0.0.1:9") as (inner, reached), redirecting(inner) as (outer, asked):
        with pytest.raises((ValidationError, GitError), match=r"redirect|302|cannot be read"):
            mirror.check_url(Remote(f"{outer}/a/b.git"), settings)
        assert asked
        assert not reached


@pytest.fixture
def connected(tmp_path: Path) -> Iterator[tuple[RunningPlatform, Git, str]]:
    """A running platform whose workspace is connected to a bare repository on this machine, and a checkout of it."""
    bare = tmp_path / "ann" / "origin.git"
    Git(None).run("init", "-q", "--bare", "--initial-branch=main", str(bare))
    checkout = tmp_path / "checkout"
    Git(None).run("clone", "-q", str(bare), str(checkout))
    git = Git(checkout)
    commit(git, "first")
    with running_platform(tmp_path / "data", hosted=False) as running:
        with running.parts.db.write() as session:
            workspace = session.get_one(tables.Workspace, running.workspace_id)
            row = repositories.connect_external(session, running.parts.settings, workspace, str(bare), trusted=True)
        yield running, git, row.id


def commit(git: Git, name: str) -> str:
    assert git.cwd is not None
    (git.cwd / "rollouts" / name).mkdir(parents=True)
    (git.cwd / "rollouts" / name / "main.py").write_text("x = 1\n")
    git.run("add", "-A")
    git.run("-c", "user.name=T", "-c", "user.email=t@localhost", "commit", "-q", "-m", name)
    git.run("push", "-q", "origin", "HEAD:main")
    return git.text("rev-parse", "HEAD").strip()


def synced(running: RunningPlatform, commit_sha: str) -> bool:
    with running.parts.db.read() as session:
        return session.scalars(sa.select(tables.Repository.last_synced_commit)).one() == commit_sha


def test_a_signed_webhook_syncs_and_an_unsigned_one_does_nothing(connected: tuple[RunningPlatform, Git, str]) -> None:
    running, git, _ = connected
    told = httpx.get(f"{running.url}/api/cli/webhook", headers=running.headers).json()
    body = json.dumps({"ref": "refs/heads/main", "padding": "x" * 100_000}).encode()  # as long as real ones are

    def post(headers: dict[str, str], content: bytes = body) -> int:
        return httpx.post(told["url"], content=content, headers=headers, timeout=30).status_code

    def signature(content: bytes, secret: str = told["secret"]) -> dict[str, str]:
        return {"X-Hub-Signature-256": "sha256=" + hmac.new(secret.encode(), content, hashlib.sha256).hexdigest()}

    tip = commit(git, "second")
    for bad in ({}, {"X-Gitlab-Token": ""}, {"X-Gitlab-Token": "x"}, signature(body, "other"), signature(body + b" ")):
        assert post(bad) == 401
    assert not synced(running, tip)
    assert post(signature(body)) == 202
    until(lambda: synced(running, tip), "the webhook of GitHub syncs")
    tip = commit(git, "third")
    assert post({"X-Gitlab-Token": told["secret"]}) == 202
    until(lambda: synced(running, tip), "the webhook of GitLab syncs")
    with running.parts.db.read() as session:
        events = session.scalars(sa.select(tables.SyncEvent.status)).all()
    assert post({"X-Gitlab-Token": told["secret"]}) == 202  # nothing moved
    until(lambda: True, "")
    assert set(events) == {"Success"}


def test_a_poll_syncs_what_moved_and_writes_nothing_else(connected: tuple[RunningPlatform, Git, str]) -> None:
    running, git, repository_id = connected
    db, settings = running.parts.db, running.parts.settings
    assert sync.list_external(db) == [repository_id]
    for _ in range(2):
        sync.poll(db, settings, repository_id)
    with db.read() as session:
        assert session.scalar(sa.select(sa.func.count()).select_from(tables.SyncEvent)) == 1
    tip = commit(git, "second")
    sync.poll(db, settings, repository_id)
    assert synced(running, tip)


def test_a_poll_that_fails_leaves_one_event_with_the_reason(connected: tuple[RunningPlatform, Git, str]) -> None:
    running, git, repository_id = connected
    db, settings = running.parts.db, running.parts.settings
    sync.poll(db, settings, repository_id)
    origin = Path(git.text("remote", "get-url", "origin").strip())
    origin.rename(origin.with_name("away"))
    for _ in range(3):
        sync.poll(db, settings, repository_id)
    state = httpx.get(f"{running.url}/api/cli/sync", headers=running.headers, timeout=30).json()
    assert [event["status"] for event in state["events"]] == ["Failed", "Success"]
    assert "does not" in state["events"][0]["error"]
    origin.with_name("away").rename(origin)
    tip = commit(git, "second")
    sync.poll(db, settings, repository_id)
    assert synced(running, tip)


@pytest.mark.skipif(sys.platform != "linux", reason="the size of git's files is limited on Linux")
def test_a_repository_that_is_larger_than_the_limit_is_refused_with_what_to_do(
    connected: tuple[RunningPlatform, Git, str],
) -> None:
    running, git, repository_id = connected
    db = running.parts.db
    settings = running.parts.settings.model_copy(update={"max_fetch_bytes": 200_000})
    sync.poll(db, settings, repository_id)
    assert git.cwd is not None
    (git.cwd / "weights.bin").write_bytes(os.urandom(2_000_000))
    tip = commit(git, "heavy")
    sync.poll(db, settings, repository_id)
    assert not synced(running, tip)
    with db.read() as session:
        place = mirror.RepositoryFolder.of(session.get_one(tables.Repository, repository_id), settings)
        events = session.scalars(sa.select(tables.SyncEvent).order_by(tables.SyncEvent.created_at)).all()
    assert [event.status for event in events] == ["Success", "Failed"]
    assert "more than 0.2 MB" in (events[-1].error or "")
    assert "OSMOSIS_MAX_FETCH_BYTES" in (events[-1].error or "")
    assert not list(place.path.glob("objects/pack/tmp_*")), "what was fetched in vain does not fill the disk"
    sync.poll(db, running.parts.settings, repository_id)
    assert synced(running, tip)


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({"host": "127.0.0.1"}, False),
        ({"host": "0.0.0.0"}, True),
        ({"host": "192.168.1.5", "public_url": "http://osmosis.lan"}, True),
        ({"host": "127.0.0.1", "public_url": "http://osmosis.lan"}, True),
        ({"host": "0.0.0.0", "public_url": "https://osmosis.example.com"}, False),
        ({"host": "127.0.0.1", "public_url": "http://localhost:8080"}, False),
    ],
)
def test_plain_http_beyond_this_machine_is_refused(tmp_path: Path, given: dict[str, str], refused: bool) -> None:
    settings = settings_of(tmp_path, **given)
    if not refused:
        settings.refuse_open_http()
        return
    with pytest.raises(UsageError) as error:
        settings.refuse_open_http()
    assert "--insecure-http" in str(error.value.hint)
