"""`run`: the result of a command, its limits, and that nothing of it is left afterwards."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from osmosis.records.sandbox import EndedBy, LimitedResult
from osmosis.sandbox import Level, Limits, Policy, run
from osmosis.sandbox.namespaces import python_folders

PYTHON = Path(sys.executable)
SHELL = ("/bin/sh", "-c")


def python(level: Level, code: str, limits: Limits) -> LimitedResult:
    return run([str(PYTHON), "-I", "-S", "-c", code], Policy(level=level, limits=limits, read=python_folders(PYTHON)))


def test_output_and_exit_code_are_the_commands(level: Level) -> None:
    done = run([*SHELL, "cat; echo problem >&2; exit 3"], Policy(level=level), input=b"given")
    assert (done.code, done.stdout, done.stderr, done.ended) == (3, b"given", b"problem\n", EndedBy.ITSELF)
    assert not done.ok


def test_a_signal_is_told_from_an_exit_code(level: Level) -> None:
    assert run([*SHELL, "kill -SEGV $$"], Policy(level=level)).code == -signal.SIGSEGV


def test_a_program_that_is_not_there_is_a_result_that_names_it(level: Level) -> None:
    done = run(["/no/such/program"], Policy(level=level))
    assert done.code != 0
    assert b"/no/such/program" in done.stderr


def test_input_larger_than_a_pipe_is_written_while_output_is_read(level: Level) -> None:
    given = os.urandom(3_000_000)
    assert run(["/bin/cat"], Policy(level=level), input=given).stdout == given


def test_a_command_that_reads_nothing_is_not_waited_for(level: Level) -> None:
    assert run(["/bin/true"], Policy(level=level), input=b"x" * 1_000_000).ok


def test_wall_time(level: Level) -> None:
    done = run(["/bin/sleep", "60"], Policy(level=level, limits=Limits(wall_s=0.3)))
    assert (done.ended, done.code) == (EndedBy.TIME, -signal.SIGKILL)


def test_output_beyond_its_limit_ends_the_command(level: Level) -> None:
    done = run(["/usr/bin/yes"], Policy(level=level, limits=Limits(output_bytes=1000, wall_s=30)))
    assert done.ended is EndedBy.OUTPUT
    assert len(done.stdout) == 1001, "no more is kept than shows that it was too much"


def test_cpu_time(level: Level) -> None:
    done = run([*SHELL, "while :; do :; done"], Policy(level=level, limits=Limits(cpu_s=1, wall_s=60)))
    # Where a loaded machine gives a second of CPU in one go, the kernel passes the warning over.
    assert done.code in (-signal.SIGXCPU, -signal.SIGKILL)
    assert done.ended is EndedBy.ITSELF, "it was not the wall time"


def test_memory_of_all_processes_together(level: Level) -> None:
    code = "import os, time\nfor _ in range(3): os.fork()\nkept = bytearray(os.urandom(1) * 40_000_000)\ntime.sleep(60)"
    done = python(level, code, Limits(memory_mb=200, wall_s=60))
    assert done.ended is EndedBy.MEMORY


def test_memory_that_processes_share_counts_once(level: Level) -> None:
    code = "import os, time\nkept = os.urandom(60_000_000)\nfor _ in range(3): os.fork()\ntime.sleep(0.5)"
    done = python(level, code, Limits(memory_mb=200, wall_s=60))
    assert done.ok, done


def test_address_space_is_an_error_that_the_program_sees(level: Level) -> None:
    code = "try: bytearray(900_000_000)\nexcept MemoryError: print('refused')"
    done = python(level, code, Limits(address_space_mb=400, wall_s=60))
    assert done.stdout == b"refused\n"


def test_too_many_processes(level: Level) -> None:
    script = "i=0; while [ $i -lt 60 ]; do sleep 30 & i=$((i+1)); done; wait"
    done = run([*SHELL, script], Policy(level=level, limits=Limits(processes=20, wall_s=30)))
    assert done.ended is EndedBy.PROCESSES or b"fork" in done.stderr, done


@pytest.mark.parametrize("way", ["setsid sleep {n}", "setsid sh -c 'setsid sleep {n} & setsid sleep {n} & wait'"])
def test_nothing_outlives_the_command(level: Level, way: str) -> None:
    number = f"{os.getpid()}.{time.monotonic_ns() % 10**9}"
    script = f"trap '' TERM HUP; {way.format(n=number)} >/dev/null 2>&1 </dev/null & sleep 0.3"
    assert run([*SHELL, script], Policy(level=level)).ok
    assert not running(number)


def running(text: str) -> list[str]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if text in line and int(folder.name) != os.getpid():
                found.append(line)
    return found
