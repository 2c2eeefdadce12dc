"""Bubblewrap's part where it is not installed: `python -I -S own_namespaces.py <bwrap's arguments> -- <command>`
carries out `bubblewrap.arguments` with the kernel's own calls. Imports nothing of ours."""

import ctypes
import fcntl
import itertools
import json
import os
import re
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterator

FLAGS = {
    "--unshare-user": 0x10000000,
    "--unshare-pid": 0x20000000,
    "--unshare-ipc": 0x08000000,
    "--unshare-uts": 0x04000000,
    "--unshare-net": 0x40000000,
    "--unshare-cgroup-try": 0x02000000,
}
NEW_MOUNTS = 0x00020000
RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND, REC, PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
KEPT_FLAGS = 1 | 2 | 4 | 8 | 1024 | 2048
DETACH = 2
RELATIME, ST_RELATIME = 1 << 21, 4096
"""Flags of a mount (`MS_*`) and, of what `statvfs` says, those that a remount must repeat."""
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 22, 24, 38
CAPABILITY_VERSION_3, LAST_CAPABILITY = 0x20080522, 63
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
OLD, NEW = "/oldroot", "/newroot"
MOST_DESCRIPTORS = 65536
SWITCHES = ("--clearenv", "--new-session", "--die-with-parent", "--disable-userns")
KILLED = 128 + signal.SIGKILL

libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: object) -> None:
    passed = [argument.encode() if isinstance(argument, str) else argument for argument in arguments]
    if getattr(libc, name)(*(ctypes.c_ulong(each) if isinstance(each, int) else each for each in passed)) == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name} {' '.join(map(str, arguments[:2]))}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    call("mount", source, target, kind, flags, data)


class Root:
    """The new root while it is built; the methods are the arguments of bubblewrap with their values."""

    def __init__(self) -> None:
        self.size: str | None = None
        self.mode = "755"

    def make(self, path: str, *, folder: bool) -> str:
        target = NEW + path
        os.makedirs(target if folder else os.path.dirname(target), mode=0o755, exist_ok=True)
        if not folder and not os.path.exists(target):
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o444))
        return target

    def link(self, source: str, path: str) -> None:
        os.makedirs(os.path.dirname(NEW + path), exist_ok=True)
        os.symlink(source, NEW + path)

    def bind(self, source: str, path: str, *, flags: int = NOSUID | NODEV, optional: bool = False) -> None:
        if optional and not os.path.exists(OLD + source):
            return
        target = self.make(path, folder=os.path.isdir(OLD + source))
        mount(OLD + source, target, None, BIND | REC)
        for point in mounts_below(target):
            remount(point, flags)

    def tmpfs(self, path: str) -> None:
        options = f"mode={self.mode}" + (f",size={self.size}" if self.size else "")
        mount("tmpfs", self.make(path, folder=True), "tmpfs", NOSUID | NODEV, options)
        self.size, self.mode = None, "755"

    def dev(self, path: str) -> None:
        target = self.make(path, folder=True)
        mount("tmpfs", target, "tmpfs", NOSUID, "mode=755,size=65536")
        for name in ("null", "zero", "full", "random", "urandom", "tty"):
            self.bind(f"/dev/{name}", f"{path}/{name}", flags=NOSUID)
        for name, link in {"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"}.items():
            os.symlink(f"/proc/self/fd{link}", f"{target}/{name}")
        for name in ("shm", "pts"):
            os.mkdir(f"{target}/{name}")
        mount("devpts", f"{target}/pts", "devpts", NOSUID | NOEXEC, "newinstance,ptmxmode=0666,mode=620")
        os.symlink("pts/ptmx", f"{target}/ptmx")

    def write(self, descriptor: str, path: str) -> None:
        with open(int(descriptor), "rb") as content, open(self.make(path, folder=False), "wb") as file:
            file.write(content.read())


def mounts_below(target: str) -> list[str]:
    with open(f"{OLD}/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        points = [re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), line.split()[4]) for line in file]
    return [point for point in dict.fromkeys(points) if point == target or point.startswith(f"{target}/")]


def remount(point: str, flags: int) -> None:
    now = os.statvfs(point).f_flag
    mount("none", point, None, REMOUNT | BIND | flags | now & KEPT_FLAGS | (RELATIME if now & ST_RELATIME else 0))


def enter_root(base: str = "/tmp") -> None:
    mount("none", "/", None, REC | PRIVATE)
    mount("tmpfs", base, "tmpfs", NOSUID | NODEV, "mode=755")
    for name in (OLD, NEW):
        os.mkdir(base + name)
    mount(base + NEW, base + NEW, None, BIND | REC)
    call("pivot_root", base, base + OLD)
    os.chdir("/")


def read_arguments(words: list[str]) -> Iterator[str]:
    words = list(words)
    while words:
        word = words.pop(0)
        if word == "--args":
            with open(int(words.pop(0)), "rb") as file:
                yield from (os.fsdecode(part) for part in file.read().split(b"\0")[:-1])
        else:
            yield word


def build_root(options: list[str]) -> dict[str, list[str]]:
    root, rest = Root(), iter(options)
    others: dict[str, list[str]] = {"--setenv": []}
    read_only = NOSUID | NODEV | RDONLY
    pairs: dict[str, Callable[[str, str], object]] = {
        "--bind": root.bind,
        "--ro-bind": lambda source, path: root.bind(source, path, flags=read_only),
        "--ro-bind-try": lambda source, path: root.bind(source, path, flags=read_only, optional=True),
        "--dev-bind-try": lambda source, path: root.bind(source, path, flags=NOSUID, optional=True),
        "--ro-bind-data": root.write,
        "--symlink": root.link,
        "--setenv": lambda name, value: others["--setenv"].append(f"{name}={value}"),
    }
    singles: dict[str, Callable[[str], object]] = {
        "--tmpfs": root.tmpfs,
        "--dev": root.dev,
        "--dir": lambda path: root.make(path, folder=True),
        "--proc": lambda path: mount("proc", root.make(path, folder=True), "proc", NOSUID | NODEV | NOEXEC),
        "--remount-ro": lambda path: remount(NEW + path.rstrip("/"), RDONLY),
        "--size": lambda value: setattr(root, "size", value),
        "--perms": lambda value: setattr(root, "mode", value),
    }
    for option in rest:
        if option in pairs:
            pairs[option](next(rest), next(rest))
        elif option in singles:
            singles[option](next(rest))
        elif option not in FLAGS and option not in SWITCHES:
            others[option] = [next(rest)]
    return others


def main(words: list[str]) -> int:
    end = words.index("--")
    options, command = list(read_arguments(words[:end])), words[end + 1 :]
    values = dict(itertools.pairwise(options))
    parent, user, group = os.getppid(), os.geteuid(), os.getegid()
    call("prctl", PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        return KILLED
    call("unshare", sum(FLAGS[option] for option in options if option in FLAGS))
    for name, text in (("setgroups", "deny"), ("uid_map", f"1000 {user} 1"), ("gid_map", f"1000 {group} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)
    first = os.fork()
    if not first:
        os._exit(run_first_process(options, command))
    if "--info-fd" in values:
        with open(int(values["--info-fd"]), "w", encoding="ascii") as file:
            json.dump({"child-pid": first}, file)
    code = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
    return code if code >= 0 else 128 - code


def run_first_process(options: list[str], command: list[str]) -> int:
    try:
        call("prctl", PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        call("unshare", NEW_MOUNTS)
        enter_root()
        others = build_root(options)
        call("umount2", OLD, DETACH)
        os.chdir(NEW)
        call("pivot_root", ".", ".")
        call("umount2", ".", DETACH)
        socket.sethostname(others["--hostname"][0])
        if "--unshare-net" in options:
            with socket.socket() as asking:
                fcntl.ioctl(asking, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
        for capability in range(LAST_CAPABILITY + 1):
            libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
        call("capset", struct.pack("=Ii", CAPABILITY_VERSION_3, 0), bytes(24))
        call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        program = b""
        if "--seccomp" in others:
            with open(int(others["--seccomp"][0]), "rb") as file:
                program = file.read()
        if "--block-fd" in others:
            os.read(int(others["--block-fd"][0]), 1)
        os.closerange(3, MOST_DESCRIPTORS)
        os.chdir(others["--chdir"][0])
    except (OSError, ValueError) as problem:
        sys.stderr.write(f"own namespaces: {problem}\n")
        return 1
    child = os.fork()
    if not child:
        try:
            os.setsid()
            if program:

                class Program(ctypes.Structure):
                    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))

                filter_program = Program(len(program) // 8, program)
                if libc.prctl(PR_SET_SECCOMP, 2, ctypes.byref(filter_program), 0, 0):
                    raise OSError(ctypes.get_errno(), "the system call filter is refused")
            environ = dict(pair.split("=", 1) for pair in others["--setenv"])
            execute(command, {**environ, "PWD": others["--chdir"][0]})
        except OSError as problem:
            sys.stderr.write(f"{command[0]} cannot be started: {problem.strerror}\n")
            sys.stderr.flush()
        os._exit(1)
    while True:
        ended, status = os.wait()
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def execute(command: list[str], environ: dict[str, str]) -> None:
    folders = [""] if "/" in command[0] else environ.get("PATH", os.defpath).split(":")
    paths = [os.path.join(folder, command[0]) for folder in folders]
    os.execve(next((path for path in paths if os.access(path, os.X_OK)), paths[0]), command, environ)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except OSError as problem:
        sys.exit(f"own namespaces: {problem}")
