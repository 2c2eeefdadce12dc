"""A container as a sandbox: what an engine is told, always; what a real one makes of it, where one works."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.fake_engine import fake_engine, told

BUSYBOX = "busybox"
TRY = """
import json, sys
from osmosis.errors import OsmosisError
from osmosis.records.sandbox import SandboxChoice
from osmosis.records.sandbox import SessionCommand
from osmosis.sandbox.session import SessionLimits, Session, choose_kind
asked = json.load(sys.stdin)
said = []
try:
    choice = SandboxChoice(kind=asked["kind"], image=asked["image"])
    session = Session(choose_kind(choice, most=SessionLimits(disk_mb=8)))
    for path, text in asked["files"].items():
        session.write(path, text.encode())
    for command in asked["commands"]:
        done = session.run(SessionCommand(**command))
        said.append([done.code, done.stdout.decode(), done.stderr.decode(), done.ended.value])
    said.append(session.files())
    session.close()
except OsmosisError as problem:
    said.append([problem.message, problem.hint])
print(json.dumps(said))
"""


def tried(
    environ: dict[str, str],
    *commands: dict[str, object],
    image: str | None = BUSYBOX,
    kind: str = "container",
    files: dict[str, str] | None = None,
) -> list[Any]:
    asked = {"kind": kind, "image": image, "files": files or {}, "commands": commands}
    done = subprocess.run(
        [sys.executable, "-c", TRY], input=json.dumps(asked), env=environ, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    said: list[Any] = json.loads(done.stdout)
    return said


@pytest.fixture
def faked(tmp_path: Path) -> dict[str, str]:
    """An environment in which the only engine is ours."""
    fake_engine(tmp_path / "engine")
    return {"PATH": f"{tmp_path / 'engine'}", "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "KEY": "value-of-a-key"}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which podman works and has an image; skipped, with the reason, where it does not."""
    busybox, podman = shutil.which("busybox"), shutil.which("podman")
    if podman is None or busybox is None:
        pytest.skip("podman and a static busybox are not both here")
    folder = tmp_path_factory.mktemp("podman")
    settings = folder / "containers.conf"
    # runc, where it is, also works on machines whose control groups are of two versions at once.
    runtime = 'runtime = "runc"\n' if shutil.which("runc") else ""
    limits = "\n".join(['default_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]'])
    settings.write_text(f"[containers]\n{limits}\n[engine]\n{runtime}", encoding="utf-8")
    environ = {**os.environ, "CONTAINERS_CONF": str(settings)}
    root = folder / "root" / "bin"
    root.mkdir(parents=True)
    shutil.copy(busybox, root / "busybox")
    for name in ("sh", "cat", "id", "sleep", "env", "head", "yes", "ls", "touch"):
        (root / name).symlink_to("busybox")
    made = f"tar -C {root.parent} -c . | {podman} import - osmosis-test:busybox && {podman} run --rm --pull never "
    made += "--network none osmosis-test:busybox /bin/sh -c true"
    done = subprocess.run(["/bin/sh", "-c", made], env=environ, capture_output=True, text=True, timeout=120)
    if done.returncode:
        pytest.skip(f"podman cannot run a container here: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    return environ


IMAGE = "osmosis-test:busybox"


def test_what_an_engine_is_told(faked: dict[str, str], tmp_path: Path) -> None:
    said = tried(
        faked,
        {"argv": ["cat", "in.txt"], "memory_mb": 64, "environ": {"GIVEN": "value-given"}},
        files={"in.txt": "hello"},
    )
    assert said == [[0, "hello", "", "itself"], ["in.txt"]]
    run = next(words for words in told(tmp_path / "engine") if words[0] == "run")
    line = " ".join(run)
    for part in (
        "--network none",
        "--read-only",
        "--cap-drop ALL",
        "--security-opt no-new-privileges",
        "--pull never",
        "--memory 64m --memory-swap 64m",
        "--pids-limit 256",
        "--workdir /sandbox",
        "target=/sandbox",
        """--entrypoint /bin/sh busybox -c exec "$@" sh cat in.txt""",
    ):
        assert part in line, part
    assert "value-given" not in line, "the values of variables are on no command line"
    assert "value-of-a-key" not in line
    assert told(tmp_path / "engine")[-1][:2] == ["rm", "--force"]


def test_a_command_beyond_its_time_is_ended_by_the_engine(faked: dict[str, str], tmp_path: Path) -> None:
    said = tried(faked, {"argv": ["sleep", "600"], "time_s": 1.0})
    assert said[0][3] == "time"
    assert "kill" in {words[0] for words in told(tmp_path / "engine")}
    assert list((tmp_path / "engine" / "containers").iterdir()) == []


def test_what_a_killed_process_left_is_removed(faked: dict[str, str], tmp_path: Path) -> None:
    containers = tmp_path / "engine" / "containers"
    containers.mkdir()
    gone = subprocess.Popen(["/bin/true"])
    gone.wait()
    (containers / "osmosis-left").write_text(json.dumps({"pid": 0, "label": f"osmosis.owner={gone.pid}/1.0"}))
    tried(faked, {"argv": ["true"]})
    assert list(containers.iterdir()) == []


@pytest.mark.parametrize(
    ("image", "says"),
    [("python:3.99", "the image python:3.99 is not on this machine"), ("--privileged", "is not the name of an image")],
)
def test_an_image_that_is_not_here_is_not_fetched(faked: dict[str, str], image: str, says: str) -> None:
    ((message, hint),) = tried(faked, image=image)
    assert says in message
    assert hint


def test_a_network_is_refused(faked: dict[str, str]) -> None:
    ((message, _),) = tried(faked, {"argv": ["true"], "network": True})
    assert "a container has no network here" in message


def test_without_an_engine_it_is_said(tmp_path: Path) -> None:
    ((message, hint),) = tried({"PATH": str(tmp_path), "TMPDIR": str(tmp_path)})
    assert "neither podman nor docker is installed" in message
    assert "install podman" in hint


def test_a_real_container_holds(real: dict[str, str]) -> None:
    script = "id -u; cat in.txt; echo made > out.txt; touch /bin/x 2>&1; cat /proc/net/dev; ls /tmp; echo $GIVEN"
    said = tried(
        {**real, "KEY": "value-of-a-key"},
        {"argv": ["sh", "-c", script], "environ": {"GIVEN": "value-given"}},
        {"argv": ["env"]},
        {"argv": ["sleep", "600"], "time_s": 2.0},
        {"argv": ["yes"]},
        {"argv": ["no-such-program"]},
        {"argv": ["sh", "-c", "sh -c 'kill -9 $$'; exit 3"]},
        {"argv": ["sh", "-c", "head -c 20000000 /dev/zero > big; sleep 600"], "time_s": 60},
        image=IMAGE,
        files={"in.txt": "hello\n"},
    )
    first, environ, late, loud, missing, killed, full, files = said
    assert first[1].splitlines()[:2] == ["1000" if os.geteuid() == 0 else str(os.geteuid()), "hello"]
    assert "Read-only file system" in first[1]
    assert "eth0" not in first[1]
    assert first[1].splitlines()[-1] == "value-given"
    assert "value-of-a-key" not in environ[1]
    assert late[3] == "time"
    assert loud[3] == "output"
    assert missing[0] == 127
    assert killed[0] == 3
    assert full[3] == "disk"
    assert files == ["big", "in.txt", "out.txt"]
    left = subprocess.run(
        ["podman", "ps", "--all", "--quiet", "--filter", "label=osmosis.owner"],
        env=real,
        capture_output=True,
        text=True,
        check=True,
    )
    assert left.stdout == ""


def test_a_real_container_that_cannot_start_says_why(real: dict[str, str]) -> None:
    ((message, _),) = tried(real, image="osmosis-test:none")
    assert "is not on this machine" in message
