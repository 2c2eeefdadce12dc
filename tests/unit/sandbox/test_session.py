"""A sandbox with a folder: files stay, processes do not, nothing leads outside."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from osmosis.errors import OsmosisError, SandboxUnavailable, ValidationError
from osmosis.records.sandbox import EndedBy, SandboxChoice, SessionCommand
from osmosis.sandbox import Abilities, Level, session as session_module
from osmosis.sandbox.session import PREFIX, Session, SessionKind, SessionLimits, choose_kind

SMALL = SessionLimits(disk_mb=8, file_mb=64, output_bytes=1000, read_bytes=100_000)


@pytest.fixture
def session(level: Level, tmp_path: Path) -> Session:
    return Session(SessionKind(level, python=Path(sys.executable), most=SMALL, parent=tmp_path))


def sh(session: Session, line: str) -> str:
    done = session.run(SessionCommand(["/bin/sh", "-c", line]))
    assert done.ok, done
    return done.stdout.decode()


def test_files_stay_from_one_command_to_the_next_and_go_at_the_end(session: Session, tmp_path: Path) -> None:
    session.write("data/in.txt", b"given")
    assert sh(session, "cat data/in.txt; echo made > out.txt; mkdir -p deep/er; echo x > deep/er/file") == "given"
    assert session.read("out.txt") == b"made\n"
    assert session.read(f"{session.workdir}/out.txt") == b"made\n"
    assert session.files() == ["data/in.txt", "deep/er/file", "out.txt"]
    session.write("deep/er/file", b"other")
    assert sh(session, "cat deep/er/file; pwd") == f"other{session.workdir}\n"
    assert session.run(SessionCommand(["pwd"], cwd="deep")).stdout.decode() == f"{session.workdir}/deep\n"
    session.close()
    assert list(tmp_path.iterdir()) == []


def test_python_is_the_one_that_was_given(session: Session) -> None:
    code = "import sys, pydantic; print(sys.version_info[:2])"
    assert session.run(SessionCommand(["python", "-c", code])).stdout.decode().strip() == str(sys.version_info[:2])


def test_no_variable_of_this_process_is_inside(level: Level, tmp_path: Path) -> None:
    code = (
        "import pathlib, sys\n"
        "from osmosis.sandbox import Level\n"
        "from osmosis.sandbox.session import SessionCommand, SessionKind, Session\n"
        f"session = Session(SessionKind(Level({level.value}), parent=pathlib.Path({str(tmp_path)!r})))\n"
        "sys.stdout.write(session.run(SessionCommand(['env'], environ={'GIVEN': 'yes'})).stdout.decode())\n"
    )
    environ = {**os.environ, "OPENAI_API_KEY": "value-of-the-key"}
    said = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True).stdout
    assert "GIVEN=yes" in said
    assert "value-of-the-key" not in said


@pytest.mark.parametrize("path", ["../up", "/etc/passwd", "a/../../b", "", "\0"])
def test_a_path_that_leads_elsewhere_is_refused(session: Session, path: str) -> None:
    with pytest.raises(ValidationError):
        session.read(path)
    with pytest.raises(ValidationError):
        session.write(path, b"x")


def test_links_that_were_put_inside_lead_nowhere(session: Session, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("not for it")
    folder = session.folder
    (folder / "folder").symlink_to(outside)
    (folder / "file").symlink_to(outside / "secret")
    os.link(outside / "secret", folder / "second-name")
    os.mkfifo(folder / "pipe")
    for path in ("folder/secret", "file", "second-name", "pipe", "folder"):
        with pytest.raises(ValidationError):
            session.read(path)
    with pytest.raises(ValidationError):
        session.write("folder/new", b"x")
    session.write("file", b"replaced")
    session.write("second-name", b"replaced")
    assert (outside / "secret").read_text() == "not for it"
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert session.files() == ["file", "second-name"]


def test_a_disk_that_is_filled_ends_the_command(session: Session) -> None:
    done = session.run(
        SessionCommand(["/bin/sh", "-c", "for i in 1 2 3 4 5 6; do head -c 4000000 /dev/zero > f$i; done; sleep 30"])
    )
    assert done.ended is EndedBy.DISK
    assert session.run(SessionCommand(["/bin/sh", "-c", "true"])).ended is EndedBy.DISK, (
        "it stays full until something is removed"
    )
    (session.folder / "f1").write_bytes(b"")
    for name in ("f2", "f3", "f4", "f5", "f6"):
        (session.folder / name).unlink(missing_ok=True)
    assert session.run(SessionCommand(["/bin/sh", "-c", "true"])).ok


def test_limits_are_results(session: Session) -> None:
    assert session.run(SessionCommand(["sleep", "60"], time_s=0.3)).ended is EndedBy.TIME
    assert session.run(SessionCommand(["yes"])).ended is EndedBy.OUTPUT
    code = "kept = bytearray(b'1') * 300_000_000\nimport time; time.sleep(60)"
    assert session.run(SessionCommand(["python", "-c", code], memory_mb=100)).ended is EndedBy.MEMORY


def test_whoever_waits_can_stop_it(session: Session) -> None:
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    began = time.monotonic()
    assert session.run(SessionCommand(["sleep", "600"], time_s=600), stop).ended is EndedBy.CALLER
    assert time.monotonic() - began < 300


def test_a_file_that_is_too_large_is_not_read_into_memory(session: Session) -> None:
    sh(session, "head -c 200000 /dev/zero > large")
    with pytest.raises(ValidationError, match="200000 bytes"):
        session.read("large")
    with pytest.raises(ValidationError, match="at most"):
        session.write("large", b"x" * 200_000)


def test_a_network_that_the_run_has_not_is_refused(level1: Level, tmp_path: Path) -> None:
    session = Session(SessionKind(level1, network=False, parent=tmp_path))
    with pytest.raises(SandboxUnavailable, match="the run allows none"):
        session.run(SessionCommand(["true"], network=True))
    assert b"lo" in session.run(SessionCommand(["cat", "/proc/net/dev"])).stdout
    assert session.run(SessionCommand(["cat", "/proc/net/dev"])).stdout.count(b":") == 1, "loopback alone"


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    gone = subprocess.Popen(["/bin/true"])
    gone.wait()
    left, ours = tmp_path / f"{PREFIX}{gone.pid}-x", tmp_path / f"{PREFIX}{os.getpid()}-x"
    (left / "work").mkdir(parents=True)
    ours.mkdir()
    choose_kind(SandboxChoice(kind="none"), parent=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [ours.name]


def test_no_boundary_is_only_for_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = Abilities(Level.NONE, "the kernel has no Landlock", fix="install bubblewrap")
    monkeypatch.setattr(session_module, "probe", lambda: lacking)
    assert choose_kind(SandboxChoice(kind="none")).level is Level.NONE
    with pytest.raises(SandboxUnavailable, match="no sandbox works on this machine: the kernel has no Landlock") as why:
        choose_kind(SandboxChoice())
    assert "install bubblewrap" in str(why.value.hint)
    assert "--sandbox none" in str(why.value.hint)


def test_landlock_has_no_network_of_its_own(tmp_path: Path) -> None:
    session = Session(SessionKind(Level.LANDLOCK, parent=tmp_path))
    with pytest.raises(SandboxUnavailable, match="needs slirp4netns or pasta"):
        session.run(SessionCommand(["true"], network=True))


def test_an_image_that_is_not_named_says_so() -> None:
    with pytest.raises(OsmosisError, match="needs an image"):
        choose_kind(SandboxChoice(kind="container"))


def test_a_command_may_have_less_than_the_most(level: Level, tmp_path: Path) -> None:
    kind = SessionKind(level, python=Path(sys.executable), most=replace(SMALL, time_s=0.3), parent=tmp_path)
    assert Session(kind).run(SessionCommand(["sleep", "60"], time_s=600)).ended is EndedBy.TIME
