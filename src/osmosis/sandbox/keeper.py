"""Keeps a process whose end has to be the end of all it started: `python -I -S keeper.py <fd> <command...>`.

What loses its parent below becomes a child of this process, in whatever session or group it is, so everything can be
found and ended: when the command has ended, and when the other end of the pipe `fd` is closed, which it also is when
the process that holds it was killed. Signals and the exit code are passed through. Imports nothing of ours.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PASSED_ON = (signal.SIGTERM, signal.SIGINT)
KILLED = 128 + signal.SIGKILL


def main(life: int, command: list[str]) -> int:
    """Runs `command` until it ends or its time is over; then ends what is left of it. It begins once a byte has come
    through the pipe: until then limits may be set, which the command inherits."""
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
    child = os.fork()
    if not child:
        begin(command)
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


def begin(command: list[str]) -> None:
    """Becomes the command: in a group of its own, which can be ended in one call without the keeper, and ended by the
    kernel when the keeper is killed, which is the one thing that it cannot see to itself."""
    keeper = os.getppid()
    process_control(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper:
        os._exit(KILLED)
    signal.set_wakeup_fd(-1)
    for kind in (signal.SIGCHLD, *PASSED_ON):
        signal.signal(kind, signal.SIG_DFL)
    os.setpgid(0, 0)
    try:
        os.execvp(command[0], command)
    except OSError as problem:
        sys.stderr.write(f"{command[0]} cannot be started: {problem.strerror}\n")
        sys.stderr.flush()
        os._exit(1)


def process_control(option: int, value: int) -> None:
    """Linux only: elsewhere the group has to do."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def end_all(group: int) -> None:
    """Ends the group of the command, then every process below this one, however deep, until none is left."""
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
    """Sends a signal to a process, or to the group `-pid`; one that is gone is fine."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def descendants(pid: int) -> list[int]:
    """The processes below `pid`."""
    found: list[int] = []
    with contextlib.suppress(OSError, ValueError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                for child in map(int, file.read().split()):
                    found += [child, *descendants(child)]
    return found


def pass_on(status: int) -> int:
    """Ends as the command ended."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    return os.WEXITSTATUS(status)


if __name__ == "__main__":
    try:
        sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
    except OSError as problem:
        sys.exit(f"{sys.argv[2]} cannot be started: {problem.strerror}")
