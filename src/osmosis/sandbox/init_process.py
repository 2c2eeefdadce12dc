"""Run a command and end all that it started: `python -I -S init_process.py <fd> <rules> <command>`, over when the
command ends or the pipe `fd` closes. `rules` (a descriptor, or `-`) confine it. Imports nothing of ours."""

import base64
import contextlib
import ctypes
import json
import os
import select
import signal
import stat
import struct
import sys
from collections.abc import Callable
from typing import Any

PR_SET_PDEATHSIG, PR_SET_KEEPCAPS, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 1, 8, 22, 38, 47
PR_SET_CHILD_SUBREAPER = 36
PASSED_ON = (signal.SIGTERM, signal.SIGINT)
KILLED = 128 + signal.SIGKILL
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE, IOCTL_DEVICE = 1, 2, 4, 8, 1 << 14, 1 << 15
ALL_BY_VERSION = (0, 0x1FFF, 0x3FFF, 0x7FFF, 0x7FFF, 0xFFFF)
"""Rights over files that each version knows; later versions know no more."""
LATEST = len(ALL_BY_VERSION) - 1
OF_A_FILE = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEVICE
SCOPED_FROM, SCOPE_ABSTRACT_SOCKETS, SCOPE_SIGNALS = 6, 1, 2
CAPABILITY_VERSION_3, CAP_DAC_READ_SEARCH = 0x20080522, 2

libc = ctypes.CDLL(None, use_errno=True)


def main(life: int, rules: str, command: list[str]) -> int:
    if not os.read(life, 1):
        return KILLED
    process_control(PR_SET_CHILD_SUBREAPER, 1)
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    os.set_inheritable(life, False)
    signal.set_wakeup_fd(wake)
    for kind in (signal.SIGCHLD, *PASSED_ON):
        signal.signal(kind, lambda *_: None)
    confinement = None if rules == "-" else read_rules(int(rules))
    child = os.fork()
    if not child:
        begin(command, confinement)
    with contextlib.suppress(OSError):
        os.setpgid(child, child)  # the child does it, too: whoever is first
    while True:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended == child:
            end_all(child)
            return pass_on(status)
        if ended:
            continue
        ready = select.select([woken, life], [], [])[0]
        if life in ready:
            end_all(child)
            return KILLED
        for number in os.read(woken, 4096) if woken in ready else b"":
            if number in PASSED_ON:
                send(-child, number)


def begin(command: list[str], confine: Callable[[], None] | None) -> None:
    """Become the command, in a group of its own; the kernel ends it when this process is killed."""
    keeper = os.getppid()
    signal.set_wakeup_fd(-1)
    for kind in (signal.SIGCHLD, *PASSED_ON):
        signal.signal(kind, signal.SIG_DFL)
    os.setpgid(0, 0)
    try:
        if confine is not None:
            confine()
        process_control(PR_SET_PDEATHSIG, signal.SIGKILL)  # becoming another user would undo it
        if os.getppid() != keeper:
            os._exit(KILLED)
        # Not `execvp`, which imports a module that may be out of reach now.
        folders = [""] if "/" in command[0] else os.environ.get("PATH", os.defpath).split(":")
        paths = [os.path.join(folder, command[0]) for folder in folders]
        os.execv(next((path for path in paths if os.access(path, os.X_OK)), paths[0]), command)
    except OSError as problem:
        sys.stderr.write(f"{command[0]} cannot be started: {problem.strerror}\n")
        sys.stderr.flush()
        os._exit(1)


def process_control(option: int, value: int) -> None:
    with contextlib.suppress(AttributeError, OSError):
        libc.prctl(option, value, 0, 0, 0)


def read_rules(descriptor: int) -> Callable[[], None]:
    """Return what confines a process by the rules in a file; folders are opened now, with the rights of this one."""
    with open(descriptor, "rb") as file:
        rules: dict[str, Any] = json.load(file)
    version = check(libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), 1))
    supported = ALL_BY_VERSION[min(version, LATEST)]
    attributes = struct.pack("=QQQ", supported, 0, SCOPE_ABSTRACT_SOCKETS | SCOPE_SIGNALS)
    size = 24 if version >= SCOPED_FROM else 8
    ruleset = check(libc.syscall(CREATE_RULESET, attributes, ctypes.c_size_t(size), 0))
    for paths, rights in (
        (rules["read"], EXECUTE | READ_FILE | READ_DIR),
        (rules["write"], supported),
        (rules["devices"], READ_FILE | WRITE_FILE | IOCTL_DEVICE),
    ):
        for path in paths:
            add_rule(ruleset, path, rights & supported)

    def confine() -> None:
        if rules["user"] is not None:
            become(rules["user"])
        check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        check(libc.syscall(RESTRICT_SELF, ruleset, 0))
        if program := base64.b64decode(rules["filter"]):
            buffer = ctypes.create_string_buffer(program)
            check(
                libc.prctl(
                    PR_SET_SECCOMP, 2, struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer)), 0, 0
                )
            )
        os.close(ruleset)

    return confine


def add_rule(ruleset: int, path: str, rights: int) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what is not there needs no rule
    if not stat.S_ISDIR(os.fstat(opened).st_mode):
        rights &= OF_A_FILE
    check(libc.syscall(ADD_RULE, ruleset, 1, struct.pack("=Qi", rights, opened), 0))
    os.close(opened)


def become(user: int) -> None:
    check(libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0))
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    capabilities = 1 << CAP_DAC_READ_SEARCH
    header = struct.pack("=Ii", CAPABILITY_VERSION_3, 0)
    if libc.capset(header, struct.pack("=6I", capabilities, capabilities, capabilities, 0, 0, 0)) == 0:
        libc.prctl(PR_CAP_AMBIENT, 2, CAP_DAC_READ_SEARCH, 0, 0)
    else:
        check(libc.capset(header, bytes(24)))


def check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def end_all(group: int) -> None:
    send(-group, signal.SIGKILL)
    if not sys.platform.startswith("linux"):
        return
    while True:
        below = descendants(os.getpid())
        # What is stopped starts nothing more while the others are ended.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in below:
                send(pid, number)
        try:
            while os.waitpid(-1, os.WNOHANG if below else 0)[0]:
                pass
        except ChildProcessError:
            return


def send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def descendants(pid: int) -> list[int]:
    pids: list[int] = []
    with contextlib.suppress(OSError, ValueError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                for child in map(int, file.read().split()):
                    pids += [child, *descendants(child)]
    return pids


def pass_on(status: int) -> int:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    return os.WEXITSTATUS(status)


if __name__ == "__main__":
    try:
        sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
    except OSError as problem:
        sys.exit(f"{sys.argv[3]} cannot be started: {problem.strerror}")
