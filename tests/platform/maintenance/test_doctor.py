"""The doctor finds nothing wrong with a healthy platform, and says what to type for each problem."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from osmosis._version import __version__
from osmosis.base.processes import start_token
from osmosis.platform import Platform
from osmosis.platform.maintenance.doctor import find_problems
from osmosis.platform.settings import PlatformSettings
from osmosis.records.base import utc_now
from support.platform_data import add_run


@pytest.fixture
def well(ready: Any) -> Platform:
    """A platform that this process claims to run."""
    settings = ready.platform.settings
    settings.data_dir.chmod(0o700)  # made by the test's own umask
    secret = {"name": "API_KEY", "value": "a-value", "scope": "workspace"}
    ready.json("POST", "environment-secrets", json=secret)
    announce(settings, os.getpid())
    return ready.platform


def announce(settings: PlatformSettings, pid: int, version: str = __version__) -> None:
    note = {"pid": pid, "start_token": start_token(os.getpid()), "version": version}
    path = settings.data_dir / "platform.json"
    path.write_text(json.dumps(note))
    path.chmod(0o600)


def test_of_a_platform_that_is_well_nothing_is_said(well: Platform) -> None:
    assert find_problems(well.settings) == []


def killed(platform: Platform) -> None:
    announce(platform.settings, 2**22 - 3)


def another_version(platform: Platform) -> None:
    announce(platform.settings, os.getpid(), "0.9.0")


def readable_key(platform: Platform) -> None:
    (platform.settings.data_dir / "master.key").chmod(0o644)


def open_folder(platform: Platform) -> None:
    platform.settings.data_dir.chmod(0o777)


def older(platform: Platform) -> None:
    with platform.db.write() as session:
        session.execute(sa.text("UPDATE alembic_version SET version_num = '0008'"))


def no_key(platform: Platform) -> None:
    (platform.settings.data_dir / "master.key").unlink()


def other_key(platform: Platform) -> None:
    (platform.settings.data_dir / "master.key").write_text("A" * 43 + "=\n")


def broken_key(platform: Platform) -> None:
    (platform.settings.data_dir / "master.key").write_text("no key")


def lost_dataset(platform: Platform) -> None:
    shutil.rmtree(platform.settings.objects_dir / "datasets")


def lost_repository(platform: Platform) -> None:
    shutil.rmtree(platform.settings.repositories_dir)


@pytest.mark.parametrize(
    ("harm", "code", "typed"),
    [
        (killed, "killed", "osmosis platform start"),
        (another_version, "version", "osmosis platform stop"),
        (readable_key, "open-file", "chmod 600"),
        (open_folder, "open-folder", "chmod 700"),
        (older, "revision", "osmosis platform start"),
        (no_key, "no-key", "master.key"),
        (other_key, "other-key", "osmosis secret set"),
        (broken_key, "bad-key", "base64"),
        (lost_dataset, "lost-files", "backup"),
        (lost_repository, "lost-files", "backup"),
    ],
)
def test_what_is_wrong_is_found(well: Platform, harm: Callable[[Platform], None], code: str, typed: str) -> None:
    harm(well)
    (found,) = find_problems(well.settings)
    assert found.code == code
    assert typed in found.fix


def test_a_clock_that_was_set_back(well: Platform) -> None:
    """PostgreSQL has a clock of its own, which is compared."""
    with well.db.read() as session:
        workspace = session.scalar(sa.text("SELECT id FROM workspaces"))
    add_run(well, str(workspace), updated_at=utc_now() + timedelta(hours=1))
    assert [problem.code for problem in find_problems(well.settings)] == (["clock"] if well.db.is_sqlite else [])


def test_a_process_that_works_for_a_run_that_is_over(well: Platform) -> None:
    folder = well.settings.runs_dir / "0123"
    folder.mkdir()
    words = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()", "osmosis.jobs", str(folder)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        job.stdout.readline()
        (found,) = find_problems(well.settings)
        job.communicate()
    assert (found.code, found.fix) == ("stale-process", f"kill {job.pid}")
    assert find_problems(well.settings) == []


def test_a_platform_that_does_not_run_with_its_port_taken(well: Platform) -> None:
    (well.settings.data_dir / "platform.json").unlink()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        (well.settings.data_dir / "port").write_text(str(taken.getsockname()[1]))
        assert [problem.code for problem in find_problems(well.settings)] == ["not-running", "port"]


def test_a_database_file_that_is_damaged(well: Platform, tmp_path: Path) -> None:
    if not well.db.is_sqlite:
        pytest.skip("PostgreSQL looks after its own files")
    well.db.close()
    path = well.settings.data_dir / "platform.db"
    with path.open("r+b") as file:
        file.seek(4096 * 3)
        file.write(os.urandom(4096 * 8))
    found = find_problems(well.settings)
    assert {problem.code for problem in found} <= {"damaged", "database"}
    assert found
    empty = well.settings.model_copy(update={"data_dir": tmp_path / "nothing"})
    assert [problem.code for problem in find_problems(empty)] == ["no-platform"]
    assert not empty.data_dir.exists()
