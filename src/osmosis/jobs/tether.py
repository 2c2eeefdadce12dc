"""Ties a process to the job that started it: `python tether.py <job pid> <command...>`.

A job that is killed cannot end its rollout server; this small parent does it, by ending its whole process group as
soon as the job is gone. It passes signals and the exit code through and imports nothing of ours, so it starts fast.
"""

from __future__ import annotations

import os
import select
import signal
import sys

EVERY_S = 1.0


def main(job: int, command: list[str]) -> int:
    """Runs `command` until it ends, or kills the group when process `job` is no longer our parent."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    os.set_blocking(read_end, False)
    signal.set_wakeup_fd(write_end)
    # Signals to the group reach the command itself; this process only must not die before it.
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    environ = dict(os.environ)
    if port := environ.get("_OSMOSIS_ROLLOUT_PORT"):
        environ.setdefault("ROLLOUT_PORT", port)  # the name that older rollouts read
    child = os.posix_spawnp(command[0], command, environ, setsigdef=[signal.SIGCHLD, signal.SIGTERM, signal.SIGINT])
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return _pass_on(status)
        if os.getppid() != job:
            os.killpg(os.getpgrp(), signal.SIGKILL)
        if select.select([read_end], [], [], EVERY_S)[0]:
            os.read(read_end, 4096)


def _pass_on(status: int) -> int:
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
