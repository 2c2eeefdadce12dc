"""Level 1: what a process finds inside, and what it does not."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from osmosis.errors import SandboxUnavailable
from osmosis.records.sandbox import LimitedResult
from osmosis.sandbox import Abilities, Level, Network, Policy, run
from osmosis.sandbox.namespaces import python_folders
from osmosis.sandbox.network import own_addresses

PYTHON = Path(sys.executable)
REACH = """
import socket, sys
for name in sys.argv[1:]:
    host, _, port = name.rpartition(":")
    try: socket.create_connection((host, int(port)), 3).close(); print(name, "reached")
    except OSError as problem: print(name, "refused")
"""


def reach(policy: Policy, *places: str) -> LimitedResult:
    return run([str(PYTHON), "-I", "-S", "-c", REACH, *places], policy)


def shell(script: str, policy: Policy) -> LimitedResult:
    return run(["/bin/sh", "-c", script], policy)


def test_only_what_is_listed_can_be_read(level1: Level, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    (tmp_path / "other").write_text("other")
    policy = Policy(level=level1, read=(tmp_path / "mine",))
    assert shell(f"cat {tmp_path}/mine/file", policy).stdout == b"mine"
    assert not shell(f"cat {tmp_path}/other", policy).ok
    assert shell(f"ls -A {tmp_path}", policy).stdout == b"mine\n"
    for hidden in (Path.home(), Path("/root"), Path("/var"), Path("/etc/shadow"), Path("/sys")):
        assert shell(f"test -r {hidden} && ls -A {hidden}/", policy).stdout == b"", hidden


def test_only_what_is_listed_can_be_changed(level1: Level, tmp_path: Path) -> None:
    for name in ("read", "write"):
        (tmp_path / name).mkdir()
    policy = Policy(level=level1, read=(tmp_path / "read",), write=(tmp_path / "write",))
    done = shell(
        f"for f in {tmp_path}/read/x /x /usr/x /etc/x /dev/x /proc/sys/vm/swappiness; do"
        f" (echo 1 > $f) 2>/dev/null && echo $f; done; for f in {tmp_path}/write/x {tmp_path}/x /tmp/x; do"
        " echo 1 > $f; done",
        policy,
    )
    assert (done.code, done.stdout) == (0, b"")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["read", "write"], "what is beside it is its own /tmp"
    assert [path.name for path in (tmp_path / "write").iterdir()] == ["x"]


def test_processes_outside_are_not_seen(level1: Level) -> None:
    seen = shell("ls /proc | grep -c '^[0-9]'", Policy(level=level1)).stdout
    assert int(seen) < 8


def test_no_capability_and_no_namespace_is_left(level1: Level) -> None:
    done = shell("grep CapEff /proc/self/status; id -u; unshare -Ur true && echo nested", Policy(level=level1))
    capabilities, user, *nested = done.stdout.decode().split("\n")
    assert int(capabilities.split()[1], 16) == 0
    assert user == "1000"
    assert nested == [""]


def test_the_environment_is_what_the_policy_says(level1: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET_OF_THE_CALLER", "value")
    named = {"GIVEN": "a\nb", "LD_PRELOAD": "/no/such.so"}
    done = run(["/usr/bin/env", "-0"], Policy(level=level1, environ=named))
    found = dict(pair.split("=", 1) for pair in done.stdout.decode().split("\0") if pair)
    assert found == {**named, "HOME": "/tmp/home", "TMPDIR": "/tmp", "PWD": "/tmp"}


def test_no_value_is_on_a_command_line(level1: Level) -> None:
    """Anybody on the machine may read those: neither bubblewrap's nor one of a process above it has a value."""
    policy = Policy(level=level1, environ={"KEY": "value-of-a-key"})
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, ["/bin/sleep", "1"], policy)
        lines: list[bytes] = []
        while not any(line.startswith(b"/bin/sleep") for line in lines) and not running.done():
            lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert any(line.startswith(b"/bin/sleep") for line in lines), "it was not looked while it ran"
    assert not [line for line in lines if b"value-of-a-key" in line]


def test_tmp_is_bounded_and_goes(level1: Level) -> None:
    policy = Policy(level=level1, tmp_mb=4)
    done = shell("head -c 16000000 /dev/zero > /tmp/big; echo $?; ls /tmp", policy)
    assert done.stdout.split()[0] != b"0"
    assert shell("ls /tmp", policy).stdout == b"home\n"


def test_shared_memory_has_its_size(level1: Level) -> None:
    policy = Policy(level=level1, shared_memory_mb=4)
    assert shell("head -c 16000000 /dev/zero > /dev/shm/big; echo $?", policy).stdout != b"0\n"
    assert shell("head -c 16000000 /dev/zero > /dev/shm/big; echo $?", Policy(level=level1)).stdout == b"0\n"


def test_without_a_network_nothing_of_the_host_is_reached(level1: Level) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = reach(Policy(level=level1, read=python_folders(PYTHON)), f"127.0.0.1:{port}")
    assert done.stdout == f"127.0.0.1:{port} refused\n".encode()


def test_an_open_network_does_not_reach_the_host(level1: Level, need_level: Callable[..., None]) -> None:
    need_level(level1, router=True)
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        own = [address.partition("/")[0] for address in own_addresses()]
        places = [f"{host}:{port}" for host in ("127.0.0.1", "10.0.2.2", "169.254.169.254", "192.168.1.1", *own)]
        done = reach(Policy(level=level1, network=Network.OPEN, read=python_folders(PYTHON)), *places)
    assert done.ok, done
    assert [line for line in done.stdout.decode().splitlines() if "reached" in line] == []
    assert len(done.stdout.splitlines()) == len(places)


PASTA = """
import socket, sys
from pathlib import Path
from osmosis.sandbox import Level, Network, Policy, probe, run
from osmosis.sandbox.namespaces import python_folders
look = "import socket, sys\\nprint(open('/proc/net/route').read().count('tap0'))\\n"
look += "for port in sys.argv[1:]:\\n    for host in ('127.0.0.1', '10.0.2.2', '192.168.1.1'):\\n"
look += "        try: socket.create_connection((host, int(port)), 3); print(host)\\n        except OSError: pass\\n"
policy = Policy(level=Level.NAMESPACES, network=Network.OPEN, read=python_folders(Path(sys.executable)))
print(probe().describe.rpartition(" ")[2])
with socket.create_server(("0.0.0.0", 0)) as server:
    done = run([sys.executable, "-I", "-S", "-c", look, str(server.getsockname()[1])], policy)
print(done.stdout.decode(), done.stderr.decode())
"""


def test_pasta_connects_what_slirp4netns_would(level1: Level, tmp_path: Path) -> None:
    if (pasta := shutil.which("pasta")) is None:
        pytest.skip("pasta is not here")
    for program in (pasta, shutil.which("bwrap")):
        (tmp_path / Path(str(program)).name).symlink_to(str(program))
    environ = {"PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", PASTA], env=environ, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["pasta)", "2"], "two routes lead outside; nothing of this machine was reached"
    assert not done.stderr
    deadline = time.monotonic() + 30
    while left := [
        one.pid for one in psutil.process_iter(["cmdline"]) if str(tmp_path / "pasta") in (one.info["cmdline"] or ())
    ]:
        assert time.monotonic() < deadline, left


ABANDONED = """
import json, os, subprocess, time
from osmosis.sandbox.network import SandboxNetwork
network, (info, tell) = SandboxNetwork(), os.pipe()
options = ["--unshare-all", "--ro-bind", "/", "/", "--info-fd", str(tell), "sleep", "300"]
subprocess.Popen(["bwrap", *options], pass_fds=[tell], start_new_session=True, stdout=subprocess.DEVNULL)
text = b""
while not text.rstrip().endswith(b"}"):
    text += os.read(info, 4096)
pid = json.loads(text)["child-pid"]
network.join(pid)
print(pid, flush=True)
time.sleep(300)
"""
"""Bubblewrap as it is before it has asked for its end: without `--die-with-parent`."""


def test_a_sandbox_whose_maker_is_killed_while_it_starts_ends() -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not here")
    with subprocess.Popen([sys.executable, "-c", ABANDONED], stdout=subprocess.PIPE, text=True) as maker:
        assert maker.stdout is not None
        inside = psutil.Process(int(maker.stdout.readline()))
        assert inside.is_running()
        maker.kill()
    gone, alive = psutil.wait_procs([inside], timeout=30)
    for process in alive:
        process.kill()
    assert gone == [inside]


def test_a_level_that_does_not_work_is_refused_with_the_reason() -> None:
    lacking = Abilities(Level.NONE, "bubblewrap is not installed", fix="install it")
    with pytest.raises(SandboxUnavailable, match=r"no sandbox of level 1.*bubblewrap is not installed"):
        lacking.require(Level.NAMESPACES)
    assert "level 0" in lacking.describe
    assert "bubblewrap is not installed" in lacking.describe


def test_a_folder_that_is_not_there_says_so(level1: Level, tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable, match="missing"):
        run(["/bin/true"], Policy(level=level1, read=(tmp_path / "missing",)))
