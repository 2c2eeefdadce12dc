"""`python -m osmosis.jobs --run URL`: reads its lease from standard input, asks the platform what to do, and does it.
With `--wait` it reads the URL from there, too: it may be started before there is a job for it.

SIGTERM and SIGINT end it gracefully: what is in flight may finish for a moment, then it reports `stopped`. A job
that cannot even begin says so on stderr, where the executor's log is.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping

from pydantic import ValidationError as BadSpec

from osmosis.base.processes import keep_to_itself
from osmosis.errors import LeaseLost, OsmosisError
from osmosis.records.run import JobEntry, LogLine

from .entry import JobAddress, enter, why_not
from .runner import Exit, JobRunner
from .standing_by import stand_by

BAD_CALL = 2


def main(argv: list[str], given: bytes, environ: Mapping[str, str]) -> int:
    """The exit code of the job process. `given` is a `JobEntry`, as JSON."""
    if len(argv) != 2 or argv[0] != "--run":
        return _refuse("usage: python -m osmosis.jobs --run https://PLATFORM/api/jobs/RUN")
    try:
        entry = JobEntry.model_validate_json(given)
    except BadSpec:  # its words would show what was given
        return _refuse("no lease came on standard input: jobs are started by a worker")
    try:
        address = JobAddress.of(argv[1])
        return int(asyncio.run(_run(address, entry, environ)))
    except LeaseLost as problem:
        sys.stderr.write(f"{why_not(problem)}\n")
        return int(Exit.LEASE_LOST)
    except OsmosisError as problem:
        return _refuse(why_not(problem))
    except BadSpec as problem:
        where = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in problem.errors()[:5])
        return _refuse(f"this version cannot run the platform's job: {where}")


async def _run(address: JobAddress, entry: JobEntry, environ: Mapping[str, str]) -> Exit:
    spec, handover = await enter(address, entry)
    job = JobRunner(spec, handover, environ, echo=_echo, ca_file=entry.ca_file)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, job.stop)
    return await job.go()


def _echo(line: LogLine) -> None:
    if line.level != "debug":
        sys.stderr.write(f"{line.timestamp:%H:%M:%S} {line.level} {line.step}: {line.message}\n")
        sys.stderr.flush()


def _refuse(message: str) -> int:
    sys.stderr.write(f"{message}\n")
    return BAD_CALL


def _waited_for() -> tuple[list[str], bytes]:
    """The command line and the entry of a process that was started before its job was known: the URL is the first line
    of standard input, and `job.log` in the job's folder is where it prints to. Exits when no job ever comes."""
    stand_by()
    url = sys.stdin.buffer.readline()
    given = sys.stdin.buffer.read()
    if not given:
        sys.exit(0)
    folder = JobEntry.model_validate_json(given).work_dir
    os.chdir(folder)
    output = os.open("job.log", os.O_WRONLY | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.close(output)
    return ["--run", url.decode().rstrip("\n")], given


if __name__ == "__main__":
    keep_to_itself()
    words, entry_text = _waited_for() if sys.argv[1:] == ["--wait"] else (sys.argv[1:], sys.stdin.buffer.read())
    sys.exit(main(words, entry_text, os.environ))
