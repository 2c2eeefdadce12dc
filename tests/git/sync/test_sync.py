"""Git Sync over real repositories and a real database, without HTTP."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from osmosis.errors import Conflict, ValidationError
from osmosis.platform import Platform, tables
from osmosis.platform.app import create_app
from osmosis.platform.auth import users
from osmosis.platform.git import repositories, sync
from osmosis.platform.settings import PlatformSettings
from osmosis.platform.workspaces import service as workspaces
from osmosis.records.config.experiment import Experiment

Git = Callable[..., str]


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder whose database has its tables; read-only."""
    folder = tmp_path_factory.mktemp("migrated") / "data"
    Platform.open(PlatformSettings(data_dir=folder, worker=False)).db.close()
    return folder


@pytest.fixture
def platform(migrated: Path, tmp_path: Path) -> Iterator[Platform]:
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    shutil.copytree(migrated, tmp_path / "data")
    opened = Platform.open(PlatformSettings(data_dir=tmp_path / "data", worker=False, environ=environ))
    yield opened
    opened.db.close()


def git_in(place: Path) -> Git:
    """Run git as Ann, whose home is `place`; by default in `place/work`."""
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(place),
        "GIT_AUTHOR_NAME": "Ann",
        "GIT_AUTHOR_EMAIL": "ann@localhost",
        "GIT_COMMITTER_NAME": "Ann",
        "GIT_COMMITTER_EMAIL": "ann@localhost",
    }

    def run(*args: str, cwd: Path = place / "work") -> str:
        done = subprocess.run(["git", *args], cwd=cwd, env=environ, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    return run


@pytest.fixture(scope="module")
def cloned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A work tree with one commit, `work`, and its bare origin, `ann/origin.git`; read-only."""
    place = tmp_path_factory.mktemp("cloned")
    run = git_in(place)
    run("init", "-q", "--bare", "-b", "trunk", "ann/origin.git", cwd=place)
    run("clone", "-q", "ann/origin.git", "work", cwd=place)
    run("remote", "set-url", "origin", "../ann/origin.git")
    (place / "work" / "rollouts" / "multiply").mkdir(parents=True)
    (place / "work" / "rollouts" / "multiply" / "main.py").write_text("raise SystemExit('never imported')\n")
    run("checkout", "-q", "-b", "trunk")
    run("add", ".")
    run("commit", "-q", "-m", "first")
    run("push", "-q", "origin", "trunk")
    return place


@pytest.fixture
def git(cloned: Path, tmp_path: Path) -> Git:
    """Git in a copy of `cloned`."""
    for name in ("ann", "work"):
        shutil.copytree(cloned / name, tmp_path / name)
    return git_in(tmp_path)


def connect(platform: Platform, url: str) -> str:
    with platform.db.write() as session:
        owner = users.ensure_owner(session, "local")
        workspace = workspaces.create(session, owner, "demo")
        return repositories.connect_external(session, platform.settings, workspace, url, trusted=True).id


def sync_now(platform: Platform, repository_id: str) -> tables.SyncEvent:
    with platform.db.write() as session:
        event_id = sync.add_event(session, session.get_one(tables.Repository, repository_id)).id
    sync.run(platform.db, platform.settings, event_id)
    with platform.db.read() as session:
        return session.get_one(tables.SyncEvent, event_id)


def all_events(platform: Platform) -> list[tuple[str, str, str]]:
    with platform.db.read() as session:
        rows = session.query(tables.SyncEvent).order_by(tables.SyncEvent.created_at).all()
    return [(row.status, row.branch, row.commit_sha) for row in rows]


def experiment(**more: str) -> Experiment:
    return Experiment(rollout="multiply", entrypoint="main.py", model_path="offline/calculator", dataset="x", **more)


def test_an_external_repository(platform: Platform, git: Git, tmp_path: Path) -> None:
    repository_id = connect(platform, str(tmp_path / "ann" / "origin.git"))
    event = sync_now(platform, repository_id)
    head = git("rev-parse", "HEAD")
    assert (event.status, event.branch, event.commit_sha, event.rollouts_found) == ("Success", "trunk", head, 1)
    with platform.db.read() as session:
        repository = session.get_one(tables.Repository, repository_id)
        assert (repository.full_name, repository.default_branch) == ("ann/origin", "trunk")
        assert [row.name for row in sync.list_rollouts(session, repository)] == ["multiply"]


def test_one_event_per_branch_that_moved(platform: Platform, git: Git, tmp_path: Path) -> None:
    repository_id = connect(platform, f"file://{tmp_path}/ann/origin.git")
    sync_now(platform, repository_id)
    first = git("rev-parse", "HEAD")
    git("checkout", "-q", "-b", "feature")
    git("commit", "-q", "--allow-empty", "-m", "second")
    second = git("rev-parse", "HEAD")
    git("push", "-q", "origin", "feature", "feature:other")
    sync_now(platform, repository_id)
    assert sorted(all_events(platform)[1:]) == [("Success", "feature", second), ("Success", "other", second)]
    quiet = sync_now(platform, repository_id)
    assert (quiet.status, quiet.branch, quiet.commit_sha) == ("Success", "trunk", first)


def test_code_for_a_run(platform: Platform, git: Git, tmp_path: Path) -> None:
    repository_id = connect(platform, str(tmp_path / "ann" / "origin.git"))
    sync_now(platform, repository_id)
    first = git("rev-parse", "HEAD")
    git("commit", "-q", "--allow-empty", "-m", "not synced yet")
    git("push", "-q", "origin", "trunk")
    second = git("rev-parse", "HEAD")

    def code(**pin: str) -> tuple[str, str | None]:
        found = sync.code_for_run(platform.db, platform.settings, repository_id, {"experiment": experiment(**pin)})
        return found.commit_sha, found.branch

    assert code() == (first, "trunk")
    assert code(branch="trunk") == (first, "trunk")
    assert code(commit_sha=first[:9].upper()) == (first, None)
    assert code(commit_sha=second) == (second, None), "a full sha is asked of the remote"
    sync_now(platform, repository_id)
    assert code() == (second, "trunk")


@pytest.mark.parametrize(
    ("change", "key", "text"),
    [
        ({"commit_sha": "deadbee"}, "commit_sha", "not in the connected repository"),
        ({"commit_sha": "d" * 40}, "commit_sha", "not in the connected repository"),
        ({"branch": "none"}, "branch", "never synced"),
        ({"branch": "--upload-pack=x"}, "branch", "never synced"),
        ({"rollout": "multiplx"}, "rollout", "has no rollouts/multiplx"),
        ({"entrypoint": "agent.py"}, "entrypoint", "no file rollouts/multiply/agent.py"),
    ],
)
def test_code_that_is_not_there(
    platform: Platform, git: Git, tmp_path: Path, change: dict[str, str], key: str, text: str
) -> None:
    repository_id = connect(platform, str(tmp_path / "ann" / "origin.git"))
    sync_now(platform, repository_id)
    wanted = experiment().model_copy(update=change)
    with pytest.raises(ValidationError, match=text) as caught:
        sync.code_for_run(platform.db, platform.settings, repository_id, {"experiment": wanted})
    assert caught.value.issues[0]["key"] == f"experiment.{key}"
    assert caught.value.hint


def test_a_deleted_branch_runs_no_more(platform: Platform, git: Git, tmp_path: Path) -> None:
    git("push", "-q", "origin", "trunk:feature")
    repository_id = connect(platform, str(tmp_path / "ann" / "origin.git"))
    sync_now(platform, repository_id)
    git("push", "-q", "origin", "--delete", "feature")
    sync_now(platform, repository_id)
    with pytest.raises(ValidationError, match="no longer exists"):
        sync.code_for_run(platform.db, platform.settings, repository_id, {"experiment": experiment(branch="feature")})


def test_a_rewritten_commit_can_still_be_pinned(platform: Platform, git: Git, tmp_path: Path) -> None:
    repository_id = connect(platform, str(tmp_path / "ann" / "origin.git"))
    sync_now(platform, repository_id)
    first = git("rev-parse", "HEAD")
    git("commit", "-q", "--amend", "-m", "rewritten")
    git("push", "-q", "--force", "origin", "trunk")
    assert sync_now(platform, repository_id).commit_sha == git("rev-parse", "HEAD")
    code = sync.code_for_run(
        platform.db, platform.settings, repository_id, {"experiment": experiment(commit_sha=first[:10])}
    )
    assert code.commit_sha == first


def test_a_remote_that_is_gone_is_a_failed_event(platform: Platform, git: Git, tmp_path: Path) -> None:
    repository_id = connect(platform, str(tmp_path / "ann" / "origin.git"))
    sync_now(platform, repository_id)
    (tmp_path / "ann").rename(tmp_path / "moved")
    event = sync_now(platform, repository_id)
    assert event.status == "Failed"
    assert "does not" in (event.error or "")
    with platform.db.read() as session:
        kept = session.get_one(tables.Repository, repository_id).last_synced_commit
    assert kept == git("rev-parse", "HEAD"), "what was synced before stays usable"


def test_syncs_of_one_repository_at_once(platform: Platform, git: Git, tmp_path: Path) -> None:
    repository_id = connect(platform, str(tmp_path / "ann" / "origin.git"))
    threads = [threading.Thread(target=sync_now, args=(platform, repository_id)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    head = git("rev-parse", "HEAD")
    assert all_events(platform) == [("Success", "trunk", head)] * 4
    with platform.db.read() as session:
        assert session.query(tables.SyncedRollout).count() == 1


def test_a_sync_that_was_cut_off_is_closed_by_the_next(platform: Platform, git: Git, tmp_path: Path) -> None:
    repository_id = connect(platform, str(tmp_path / "ann" / "origin.git"))
    with platform.db.write() as session:
        sync.add_event(session, session.get_one(tables.Repository, repository_id)).status = "Syncing"
    sync_now(platform, repository_id)
    assert [status for status, _, _ in all_events(platform)] == ["Failed", "Success"]


def test_a_new_start_leaves_no_sync_open(platform: Platform, git: Git, tmp_path: Path) -> None:
    repository_id = connect(platform, str(tmp_path / "ann" / "origin.git"))
    sync_now(platform, repository_id)
    with platform.db.write() as session:
        sync.add_event(session, session.get_one(tables.Repository, repository_id))
    create_app(platform.settings)
    assert [status for status, _, _ in all_events(platform)] == ["Success", "Failed"]


def _connected(session: Session, platform: Platform, workspace: tables.Workspace) -> tables.Repository:
    url = "https://github.com/ann/other"
    return repositories.connect_external(session, platform.settings, workspace, url, trusted=True)


def test_a_repository_is_not_replaced_under_a_run(platform: Platform, git: Git, tmp_path: Path) -> None:
    repository_id = connect(platform, str(tmp_path / "ann" / "origin.git"))
    with platform.db.write() as session:
        workspace = session.query(tables.Workspace).one()
        run = tables.Run(
            workspace_id=workspace.id,
            repository_id=repository_id,
            kind="eval",
            name="r",
            status="running",
            config={},
            rollout="multiply",
            model_path="m",
            dataset="d",
            dataset_path="p",
            commit_sha="c",
            rows=[],
            secret_scopes={},
        )
        session.add(run)
    with platform.db.write() as session:
        workspace = session.query(tables.Workspace).one()
        with pytest.raises(Conflict, match="have not finished"):
            repositories.connect_external(
                session, platform.settings, workspace, "https://github.com/ann/other", trusted=True
            )
    with platform.db.write() as session:
        session.query(tables.Run).one().status = "finished"
        workspace = session.query(tables.Workspace).one()
        other = repositories.connect_external(
            session, platform.settings, workspace, "https://github.com/ann/other", trusted=True
        )
        assert (other.full_name, other.last_synced_commit) == ("ann/other", None)
