"""What a sandboxed process can reach of this machine and of another sandbox: a program that tries, for each level.

`python -m support.exposure` (with `tests` on PYTHONPATH) prints the table of docs/security.md.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

from osmosis.sandbox import Level, Network, Policy, probe, run
from osmosis.sandbox.namespaces import python_folders

COLUMNS = {
    "level 0": Level.NONE,
    "Landlock": Level.LANDLOCK,
    "own namespaces": Level.NAMESPACES,
    "bubblewrap": Level.NAMESPACES,
}
ROWS = {
    "data": "a file of the platform's data folder",
    "home": "a file in the home folder",
    "write": "writing beside its own folders",
    "truncate": "truncating a file of the platform",
    "names": "whether a file with a name it knows exists",
    "processes": "processes of this machine, their command lines",
    "environ": "the environment of another process",
    "memory": "the memory of another process",
    "signal": "signals to processes of this machine",
    "port": "a port of this machine",
    "other_port": "a port on which another sandbox listens",
    "unix": "a Unix socket of this machine",
    "abstract": "an abstract socket of another sandbox",
    "tmp": "a file in the `/tmp` of another sandbox",
    "shm": "shared memory in `/dev/shm` of another sandbox",
    "sysv": "System V shared memory of another sandbox",
    "queue": "a POSIX queue of another sandbox",
    "keyring": "a key in the kernel's user keyring",
    "inotify": "that a system file is opened in another sandbox",
    "namespaces": "making namespaces",
    "kernel": "bpf, io_uring, userfaultfd, perf_event_open",
}
MARK = "exposure-test"
TRY = r"""
import ctypes, json, os, select, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
MARK = "exposure-test"
facts = json.loads(sys.argv[2])
NUMBERS = {"x86_64": (248, 250, 321, 298, 323), "aarch64": (217, 219, 280, 241, 282)}[os.uname().machine]
ADD_KEY, KEYCTL, BPF, PERF, UFFD = NUMBERS
def check(result):
    if result < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def key_id(): return check(libc.syscall(KEYCTL, 0, -4, 1))
def queue(flags):
    return check(libc.mq_open(b"/" + MARK.encode(), flags, 0o666, None))
def leave():
    open(os.path.join(os.environ.get("TMPDIR", "/tmp"), MARK), "w").close()
    held = []
    def sysv():
        segment = check(libc.shmget(4711, 64, 0o1666)); libc.shmat.restype = ctypes.c_void_p
        held.append(libc.shmat(segment, None, 0))
    def abstract():
        s = socket.socket(socket.AF_UNIX); s.bind("\0" + MARK); s.listen(); held.append(s)
    def port():
        s = socket.create_server(("127.0.0.1", facts["other_port"])); held.append(s)
    def shm(): open("/dev/shm/" + MARK, "w").close()
    def key():
        libc.syscall(KEYCTL, 8, -4, -3)
        check(libc.syscall(ADD_KEY, b"user", MARK.encode(), b"left", ctypes.c_size_t(4), -4))
    for act in (sysv, abstract, port, shm, key, lambda: queue(0o102)):
        try: act()
        except OSError: pass
    open(facts["ready"], "w").close()
    while True:
        open("/usr/bin/env").close(); time.sleep(0.02)
def find():
    def names():
        os.stat(facts["data"])
    def processes():
        assert open(f"/proc/{facts['pid']}/cmdline").read()
    def environ():
        assert MARK in open(f"/proc/{facts['pid']}/environ").read()
    def memory():
        with open(f"/proc/{facts['pid']}/maps") as maps: first = int(maps.read(200).split("-")[0], 16)
        with open(f"/proc/{facts['pid']}/mem", "rb") as mem: mem.seek(first); mem.read(4)
    def abstract():
        with socket.socket(socket.AF_UNIX) as s: s.connect("\0" + MARK)
    def unix():
        with socket.socket(socket.AF_UNIX) as s: s.connect(facts["unix"])
    def connect(port): socket.create_connection(("127.0.0.1", port), 3).close()
    def key():
        libc.syscall(KEYCTL, 8, -4, -3)
        check(libc.syscall(KEYCTL, 10, -4, b"user", MARK.encode(), 0))
    def inotify():
        watching = check(libc.inotify_init1(os.O_NONBLOCK))
        check(libc.inotify_add_watch(watching, b"/usr/bin/env", 0x20))
        assert select.select([watching], [], [], 1)[0]
    def kernel():
        for call in ((BPF, 0, bytes(64), 64), (425, 8, bytes(120)), (UFFD, 1), (PERF, bytes(128), 0, -1, -1, 0)):
            if libc.syscall(*call) >= 0 or ctypes.get_errno() not in (1, 38): return
        raise OSError("refused")
    tries = {
        "data": lambda: open(facts["data"]).read(), "home": lambda: open(facts["home"]).read(),
        "write": lambda: open(facts["data"] + ".new", "w").close(), "truncate": lambda: os.truncate(facts["data"], 1),
        "names": names, "processes": processes, "environ": environ, "memory": memory,
        "signal": lambda: os.kill(facts["pid"], 0), "port": lambda: connect(facts["port"]),
        "other_port": lambda: connect(facts["other_port"]), "unix": unix, "abstract": abstract,
        "tmp": lambda: open(facts["tmp"]).close(), "shm": lambda: open("/dev/shm/" + MARK).close(),
        "sysv": lambda: check(libc.shmget(4711, 64, 0o666)), "queue": lambda: queue(0), "keyring": key,
        "inotify": inotify, "namespaces": lambda: check(libc.unshare(0x10000000)), "kernel": kernel,
    }
    reached = []
    for name, attempt in tries.items():
        try: attempt(); reached.append(name)
        except (OSError, AssertionError): pass
    print(json.dumps(reached))
{"leave": leave, "find": find}[sys.argv[1]]()
"""


def measure(column: str, folder: Path) -> set[str]:
    """Return the rows that a sandbox of this level reaches on this machine, while another of its kind runs."""
    level, python = COLUMNS[column], Path(sys.executable)
    data, ready = folder / "data", folder / "ready"
    for made in (data, ready):
        made.mkdir()
    (data / "master.key").write_text("secret")
    home = Path.home() / f".{MARK}"
    home.write_text("secret")
    bystander = subprocess.Popen(["/bin/sleep", "60"], env={"MARK": MARK})
    served = folder / "unix"
    facts = {"data": str(data / "master.key"), "home": str(home), "pid": bystander.pid, "unix": str(served)}
    facts |= {"ready": str(ready / "done"), "tmp": f"/tmp/{MARK}", "other_port": _free_port()}
    policy = Policy(level=level, read=python_folders(python), write=(ready,), network=Network.OPEN)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as local,
        ThreadPoolExecutor(1) as pool,
        mock.patch.dict(os.environ, PATH=_path_for(column, folder)),
    ):
        probe.cache_clear()
        local.bind(str(served))
        local.listen()
        facts["port"] = server.getsockname()[1]
        stop = threading.Event()

        def command(word: str) -> list[str]:
            return [str(python), "-I", "-S", "-c", TRY, word, json.dumps(facts)]

        leaving = pool.submit(run, command("leave"), policy, stop=stop)
        try:
            until = time.monotonic() + 30
            while not (ready / "done").exists():
                if leaving.done() or time.monotonic() > until:
                    raise RuntimeError(f"the other sandbox did not begin: {leaving.result(1)}")
                time.sleep(0.02)
            if own := sorted(Path(tempfile.gettempdir()).glob(f"osmosis-tmp-{os.getpid()}-*/{MARK}")):
                facts["tmp"] = str(own[0])
            done = run(command("find"), policy)
        finally:
            stop.set()
            leaving.result()
            bystander.kill()
            bystander.wait()
            _remove_shared(home)
            probe.cache_clear()
    if not done.ok:
        raise RuntimeError(done.stderr.decode())
    return set(json.loads(done.stdout))


def _path_for(column: str, folder: Path) -> str:
    if column != "own namespaces":
        return os.environ["PATH"]
    programs = folder / "programs"
    programs.mkdir()
    for name in ("slirp4netns", "pasta"):
        if path := shutil.which(name):
            (programs / name).symlink_to(path)
    return str(programs)


def _free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])


def _remove_shared(home: Path) -> None:
    home.unlink(missing_ok=True)
    for path in (Path("/dev/shm", MARK), Path("/tmp", MARK)):
        path.unlink(missing_ok=True)
    libc = ctypes.CDLL(None)
    libc.mq_unlink(f"/{MARK}".encode())
    if (segment := libc.shmget(4711, 64, 0o666)) >= 0:
        libc.shmctl(segment, 0, None)


def table(reached: dict[str, set[str]]) -> str:
    lines = ["| a rollout reaches ... | " + " | ".join(reached) + " |", "| --- |" + " --- |" * len(reached)]
    for key, words in ROWS.items():
        lines.append(
            f"| {words} | " + " | ".join("**yes**" if key in found else "no" for found in reached.values()) + " |"
        )
    return "\n".join(lines)


def main() -> None:
    measured = {}
    for column in COLUMNS:
        with tempfile.TemporaryDirectory() as folder:
            measured[column] = measure(column, Path(folder))
    sys.stdout.write(f"{table(measured)}\n")


if __name__ == "__main__":
    main()
