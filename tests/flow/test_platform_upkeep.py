"""Maintenance commands beside a platform whose job is running."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from support.command_line import CommandRun, run_command
from support.platform_process import PlatformProcess, until

pytestmark = pytest.mark.slow


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[PlatformProcess]:
    started = PlatformProcess(tmp_path / "data", environ={**os.environ, "UV_CACHE_DIR": "/tmp/uv"})
    started.start()
    started.login()
    started.prepare(tmp_path / "checkout")
    yield started
    started.end()


def osmosis(*words: str, data_dir: Path, environ: Mapping[str, str] | None = None) -> CommandRun:
    return run_command(*words, cwd=data_dir.parent, environ={"OSMOSIS_DATA_DIR": str(data_dir), **(environ or {})})


def test_a_backup_with_a_run_in_flight_becomes_a_platform_that_finishes_it(
    platform: PlatformProcess, tmp_path: Path
) -> None:
    """Both platforms finish it, each with a job of its own."""
    name = platform.submit("wait:2")
    until(lambda: platform.rollouts(name) == [0, 1], "two rollouts are there")
    refused = osmosis("platform", "restore", str(tmp_path / "all.tar"), "--json", data_dir=platform.data_dir)
    assert refused.code == 1
    made = osmosis(
        "platform", "backup", str(tmp_path / "all.tar"), "--with-master-key", "--json", data_dir=platform.data_dir
    )
    assert made.code == 0, made.err
    again = osmosis("platform", "restore", str(tmp_path / "all.tar"), "--json", data_dir=platform.data_dir)
    assert "a platform works in" in again.error["message"]
    back = osmosis("platform", "restore", str(tmp_path / "all.tar"), "--json", data_dir=tmp_path / "new")
    assert back.code == 0, back.err
    assert back.json["resource"]["runs_in_flight"] == 1

    restored = PlatformProcess(tmp_path / "new", environ={**os.environ, "UV_CACHE_DIR": "/tmp/uv"})
    restored.http.headers.update(platform.http.headers)
    restored.start()
    try:
        until(lambda: restored.logs(name).count("job started") == 2, "the restored platform has a job of its own")
        (restored.folder(name) / "go").touch()
        restored.reaches(name, "finished")
        assert restored.rollouts(name) == [0, 1, 2, 3, 4, 5]
        assert platform.run(name)["status"] == "running"
        assert platform.rollouts(name) == [0, 1]
    finally:
        restored.end()
    (platform.folder(name) / "go").touch()
    platform.reaches(name, "finished")
    assert "restarting" not in platform.logs(name)


def test_a_sweep_beside_a_run_takes_what_nothing_needs_and_the_run_finishes(platform: PlatformProcess) -> None:
    """With every retention at zero, the running run keeps all it has."""
    done = platform.submit()
    platform.reaches(done, "finished")
    name = platform.submit("wait:2")
    until(lambda: platform.rollouts(name) == [0, 1], "two rollouts are there")
    lost = platform.data_dir / "runs" / "deleted"
    lost.mkdir()
    (lost / "job.log").write_text("x" * 10_000)
    os.utime(lost, (0, 0))
    live = sorted(path.name for path in platform.folder(name).iterdir())
    limits = {f"OSMOSIS_KEEP_{what}_DAYS": "0" for what in ("RUNS", "ARTIFACTS", "LOGS", "CACHES")}
    said = osmosis("platform", "gc", "--dry-run", "--json", data_dir=platform.data_dir, environ=limits)
    assert said.code == 0, said.err
    assert lost.exists()
    kinds = {item["kind"] for item in said.json["items"]}
    assert kinds >= {"run folders", "log lines"}
    assert said.json["bytes"] >= 10_000
    gone = osmosis("platform", "gc", "--json", data_dir=platform.data_dir, environ=limits)
    assert [item["what"] for item in gone.json["items"]] == [item["what"] for item in said.json["items"]]
    assert not lost.exists()
    assert [path.name for path in platform.folder(done).iterdir()] == []
    assert sorted(path.name for path in platform.folder(name).iterdir()) == live
    (platform.folder(name) / "go").touch()
    platform.reaches(name, "finished")
    assert "restarting" not in platform.logs(name)
    assert platform.rollouts(done) == [0, 1, 2, 3, 4, 5]


def test_a_retry_of_a_run_without_failures_asks_first(platform: PlatformProcess, tmp_path: Path) -> None:
    name = platform.submit()
    platform.reaches(name, "finished")
    login = platform.login_environ
    words = ("eval", "retry", name, "--workspace", "demo", "--json")
    asked = osmosis(*words, data_dir=platform.data_dir, environ=login)
    assert asked.error["code"] == "INTERACTIVE_REQUIRED"
    assert platform.run(name)["status"] == "finished"
    done = osmosis(*words, "--yes", data_dir=platform.data_dir, environ=login)
    assert done.code == 0, done.err
    assert "from the beginning" in done.json["message"]
    platform.reaches(name, "finished")


def test_the_doctor_beside_a_platform_that_works_finds_nothing(platform: PlatformProcess) -> None:
    said = osmosis("platform", "doctor", "--json", data_dir=platform.data_dir)
    assert said.code == 0, said.out
    assert said.json["data"]["valid"] is True
    assert {problem["severity"] for problem in said.json["data"]["problems"]} <= {"info", "warning"}
    platform.kill()
    said = osmosis("platform", "doctor", "--json", data_dir=platform.data_dir)
    assert "killed" in [problem["code"] for problem in said.json["data"]["problems"]]
    (platform.data_dir / "master.key").chmod(0o644)
    said = osmosis("platform", "doctor", data_dir=platform.data_dir)
    assert said.code == 1
    assert f"chmod 600 {platform.data_dir}" in said.out


def test_a_command_beside_no_platform_makes_none(tmp_path: Path) -> None:
    for words in (["gc"], ["backup"]):
        refused = osmosis("platform", *words, "--json", data_dir=tmp_path / "nothing")
        assert "no platform.db" in refused.error["message"]
    assert not (tmp_path / "nothing").exists()
