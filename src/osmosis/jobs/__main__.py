"""`python -m osmosis.jobs --run URL`: reads its lease from standard input, asks the platform what to do, and does it.
With `--wait CACHE` it reads the URL from there, too: it may be started before there is a job for it, and has a rollout
server ready where the last job of that cache had one.

SIGTERM and SIGINT end it gracefully: what is in flight may finish for a moment, then it reports `stopped`. A job
that cannot even begin says so on stderr, where the executor's log is.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError as BadSpec

from osmosis.base.collector import calm_collector
from osmosis.base.processes import keep_to_itself
from osmosis.base.tasks import end
from osmosis.errors import LeaseLost, OsmosisError
from osmosis.records.run import JobEntry, LogLine

from .entry import JobAddress, enter, why_not
from .ready_server import ReadyServer
from .runner import Exit, JobRunner
from .standing_by import stand_by

BAD_CALL = 2


def main(argv: list[str], given: bytes, environ: Mapping[str, str]) -> int:
    """The exit code of the job process. `given` is a `JobEntry`, as JSON."""
    return asyncio.run(_do(argv, given, environ))


async def _do(argv: list[str], given: bytes, environ: Mapping[str, str], at_hand: ReadyServer | None = None) -> int:
    if len(argv) != 2 or argv[0] != "--run":
        return _refuse("usage: python -m osmosis.jobs --run https://PLATFORM/api/jobs/RUN")
    try:
        entry = JobEntry.model_validate_json(given)
    except BadSpec:  # its words would show what was given
        return _refuse("no lease came on standard input: jobs are started by a worker")
    try:
        return int(await _run(JobAddress.of(argv[1]), entry, environ, at_hand))
    except LeaseLost as problem:
        sys.stderr.write(f"{why_not(problem)}\n")
        return int(Exit.LEASE_LOST)
    except OsmosisError as problem:
        return _refuse(why_not(problem))
    except BadSpec as problem:
        where = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in problem.errors()[:5])
        return _refuse(f"this version cannot run the platform's job: {where}")


async def _run(address: JobAddress, entry: JobEntry, environ: Mapping[str, str], at_hand: ReadyServer | None) -> Exit:
    spec, handover = await enter(address, entry)
    job = JobRunner(spec, handover, environ, echo=_echo, ca_file=entry.ca_file, server_at_hand=at_hand)
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


async def _stand_by(cache_dir: Path, environ: Mapping[str, str]) -> int:
    """Started before its job is known: the URL is the first line of standard input, a `JobEntry` the rest, and
    `job.log` in the job's folder is where it prints to. Ends when no job ever comes."""
    stand_by()
    calm_collector()
    starting = asyncio.create_task(ReadyServer.start(cache_dir, environ))
    try:
        url, given = await asyncio.to_thread(_told)
        # One that is not ready yet is not waited for: one of the job's own takes no longer.
        at_hand = starting.result() if starting.done() and not starting.exception() else None
        starting.cancel()
        if not given:
            return 0
        _print_to(Path(JobEntry.model_validate_json(given).work_dir))
        return await _do(["--run", url.decode().rstrip("\n")], given, environ, at_hand)
    finally:
        await end(starting)
        if not starting.cancelled() and not starting.exception() and (unused := starting.result()):
            await unused.close()


def _told() -> tuple[bytes, bytes]:
    return sys.stdin.buffer.readline(), sys.stdin.buffer.read()


def _print_to(folder: Path) -> None:
    os.chdir(folder)
    output = os.open("job.log", os.O_WRONLY | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.close(output)


if __name__ == "__main__":
    keep_to_itself()
    calm_collector()
    if sys.argv[1:2] == ["--wait"]:
        sys.exit(asyncio.run(_stand_by(Path(sys.argv[2]), os.environ)))
    sys.exit(main(sys.argv[1:], sys.stdin.buffer.read(), os.environ))
