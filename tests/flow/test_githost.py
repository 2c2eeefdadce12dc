"""Real git against a running platform: push, clone, refuse, sync."""

import gzip
import os
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from osmosis.platform import tables
from osmosis.platform.auth import tokens, users
from osmosis.platform.git import sync
from osmosis.records.config.experiment import Experiment
from support.platform_app import RunningPlatform

Git = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def git(tmp_path: Path) -> Git:
    work = tmp_path / "work"
    work.mkdir()
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_AUTHOR_NAME": "Ann",
        "GIT_AUTHOR_EMAIL": "ann@localhost",
        "GIT_COMMITTER_NAME": "Ann",
        "GIT_COMMITTER_EMAIL": "ann@localhost",
    }

    def run(*args: str, cwd: Path = work, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(["git", *args], cwd=cwd, env=environ, capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, done.stderr
        return done

    run("init", "-q", "-b", "main")
    (work / "rollouts" / "multiply").mkdir(parents=True)
    (work / "rollouts" / "multiply" / "main.py").write_text("raise SystemExit('sync must not import this')\n")
    run("add", ".")
    run("commit", "-q", "-m", "first commit")
    return run


def sync_state(platform: RunningPlatform) -> dict[str, Any]:
    answer = httpx.get(f"{platform.url}/api/cli/sync", headers=platform.headers)
    assert answer.status_code == 200
    return dict(answer.json())


def test_a_push_is_synced_when_it_returns(platform: RunningPlatform, git: Git, tmp_path: Path) -> None:
    git("push", platform.git_url, "main")
    head = git("rev-parse", "HEAD").stdout.strip()
    event = sync_state(platform)["events"][0]
    assert (event["status"], event["branch"], event["commit_sha"]) == ("Success", "main", head)
    assert (event["author"], event["message"], event["rollouts_found"]) == ("Ann", "first commit", 1)
    rollouts = httpx.get(f"{platform.url}/api/cli/rollouts", headers=platform.headers).json()["rollouts"]
    assert [(r["name"], r["last_synced_commit_sha"], r["repo_full_name"]) for r in rollouts] == [
        ("multiply", head, "local/demo")
    ]
    git("clone", "-q", platform.git_url, str(tmp_path / "clone"))
    assert (tmp_path / "clone" / "rollouts" / "multiply" / "main.py").exists()


def test_a_large_push_is_streamed_in_chunks(platform: RunningPlatform, git: Git, tmp_path: Path) -> None:
    big = os.urandom(12 * 1024 * 1024)
    (tmp_path / "work" / "big.bin").write_bytes(big)
    git("add", ".")
    git("commit", "-q", "-m", "big")
    git("-c", "http.postBuffer=65536", "push", platform.git_url, "main")
    git("clone", "-q", platform.git_url, str(tmp_path / "clone"))
    assert (tmp_path / "clone" / "big.bin").read_bytes() == big


def test_a_compressed_request_is_understood(platform: RunningPlatform, git: Git) -> None:
    git("push", platform.git_url, "main")
    head = git("rev-parse", "HEAD").stdout.strip()
    want = f"want {head} no-progress\n".encode()
    body = b"%04x" % (len(want) + 4) + want + b"0000" + b"0009done\n"
    answer = httpx.post(
        f"{platform.url}/git/local/demo.git/git-upload-pack",
        headers={
            "Authorization": f"Bearer {platform.token}",
            "Content-Type": "application/x-git-upload-pack-request",
            "Content-Encoding": "gzip",
        },
        content=gzip.compress(body),
    )
    assert answer.status_code == 200
    assert b"PACK" in answer.content


def test_only_known_tokens_get_in(platform: RunningPlatform, git: Git) -> None:
    bare = platform.git_url.replace(f"osmosis:{platform.token}@", "")
    refs = f"{bare}/info/refs?service=git-upload-pack"
    nobody = httpx.get(refs)
    assert nobody.status_code == 401
    assert nobody.headers["www-authenticate"].startswith("Basic ")
    assert httpx.get(refs, auth=("osmosis", "osm_wrong")).status_code == 401
    assert httpx.get(refs, headers={"Authorization": f"Bearer {platform.token}"}).status_code == 200
    assert "Authentication failed" in git("push", bare.replace("//", "//x:y@"), "main", check=False).stderr


def test_someone_outside_the_workspace_sees_no_repository(platform: RunningPlatform, git: Git) -> None:
    with platform.parts.db.write() as session:
        stranger = users.create_user(session, "eve", email="eve@localhost", name="Eve")
        token = tokens.issue(session, stranger, "test").text
    url = platform.git_url.replace(platform.token, token)
    assert "not found" in git("push", url, "main", check=False).stderr
    assert "not found" in git("ls-remote", url, check=False).stderr


@pytest.mark.parametrize(
    "path",
    [
        "/git/local/demo.git/HEAD",
        "/git/local/demo.git/config",
        "/git/local/demo.git/objects/info/packs",
        "/git/local/demo.git/info/refs",
        "/git/local/demo.git/info/refs?service=git-upload-archive",
        "/git/local/%2e%2e/info/refs?service=git-upload-pack",
        "/git/local/..%2f..%2fplatform.db/info/refs?service=git-upload-pack",
        "/git/%2e%2e/repositories/info/refs?service=git-upload-pack",
        "/git//etc/passwd",
    ],
)
def test_no_path_leads_to_a_file(platform: RunningPlatform, path: str) -> None:
    host, _, port = platform.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as wire:  # a client that normalises nothing
        wire.sendall(
            f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {platform.token}\r\n"
            "Connection: close\r\n\r\n".encode()
        )
        answer = b""
        while chunk := wire.recv(65536):
            answer += chunk
    assert answer.split(b" ", 2)[1] in (b"403", b"404"), answer


def test_hidden_refs(platform: RunningPlatform, git: Git) -> None:
    git("push", platform.git_url, "main", "main:refs/osmosis/snapshots/one")
    listed = git("ls-remote", platform.git_url).stdout
    assert "refs/heads/main" in listed
    assert "refs/osmosis" not in listed
    refused = git("push", platform.git_url, "main:refs/osmosis/synced/mine", check=False)
    assert "deny updating a hidden ref" in refused.stderr


def test_a_snapshot_is_code_a_run_can_use(platform: RunningPlatform, git: Git) -> None:
    git("push", platform.git_url, "main")
    git("commit", "-q", "--allow-empty", "-m", "work in progress")
    snapshot = git("rev-parse", "HEAD").stdout.strip()
    git("push", platform.git_url, f"{snapshot}:refs/osmosis/snapshots/mine")
    wanted = Experiment(rollout="multiply", entrypoint="main.py", model_path="m", dataset="d", commit_sha=snapshot[:12])
    with platform.parts.db.read() as session:
        repository_id = session.query(tables.Repository).one().id
    code = sync.code_for_run(platform.parts.db, platform.parts.settings, repository_id, {"experiment": wanted})
    assert code.commit_sha == snapshot
    assert len(sync_state(platform)["events"]) == 1, "a snapshot moves no branch"


def test_history_survives_a_forced_push(platform: RunningPlatform, git: Git) -> None:
    git("push", platform.git_url, "main")
    first = git("rev-parse", "HEAD").stdout.strip()
    git("commit", "-q", "--amend", "-m", "rewritten")
    assert git("push", platform.git_url, "main", check=False).returncode != 0
    git("push", "--force", platform.git_url, "main")
    assert sync_state(platform)["last_synced_commit_sha"] == git("rev-parse", "HEAD").stdout.strip()
    with platform.parts.db.read() as session:
        folder = platform.parts.settings.located(session.query(tables.Repository).one().path)
    git("gc", "--quiet", "--prune=now", cwd=folder)
    assert git("cat-file", "-t", first, cwd=folder).stdout.strip() == "commit"


def test_hooks_do_not_run(platform: RunningPlatform, git: Git, tmp_path: Path) -> None:
    git("push", platform.git_url, "main")
    with platform.parts.db.read() as session:
        folder = platform.parts.settings.located(session.query(tables.Repository).one().path)
    hook = folder / "hooks" / "post-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    git("commit", "-q", "--allow-empty", "-m", "second")
    git("push", platform.git_url, "main")
    assert not (tmp_path / "ran").exists()


def test_the_first_branch_may_have_any_name(platform: RunningPlatform, git: Git) -> None:
    git("push", platform.git_url, "main:trunk")
    state = sync_state(platform)
    assert (state["default_branch"], state["events"][0]["branch"]) == ("trunk", "trunk")
    assert state["last_synced_commit_sha"] == git("rev-parse", "HEAD").stdout.strip()


def test_a_sync_by_hand(platform: RunningPlatform, git: Git) -> None:
    empty = httpx.post(f"{platform.url}/api/cli/sync?wait=true", headers=platform.headers).json()["event"]
    assert empty["status"] == "Failed"
    assert "no branches yet" in empty["error"]
    git("push", platform.git_url, "main")
    started = httpx.post(f"{platform.url}/api/cli/sync", headers=platform.headers)
    assert started.status_code == 202
    deadline = time.monotonic() + 20
    while (event := sync_state(platform)["events"][0])["status"] != "Success":
        assert time.monotonic() < deadline, event
        time.sleep(0.05)
    assert event["id"] == started.json()["event"]["id"]
