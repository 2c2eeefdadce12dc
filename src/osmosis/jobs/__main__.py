"""`python -m osmosis.jobs <job folder>`: reads `job.json`, and the lease and the secrets from standard input; then it
runs the job.

SIGTERM and SIGINT end it gracefully: what is in flight may finish for a moment, then it reports `stopped`. A job
that cannot even be read says so on stderr, where the executor's log is.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError as BadSpec

from osmosis.base.processes import keep_to_itself
from osmosis.records.run import Handover, JobSpec, LogLine

from .runner import Exit, JobRunner

BAD_CALL = 2


def main(argv: list[str], given: bytes, environ: Mapping[str, str]) -> int:
    """The exit code of the job process. `given` is the handover, as JSON."""
    if len(argv) != 1:
        return _refuse("usage: python -m osmosis.jobs <job folder>")
    try:
        handover = Handover.model_validate_json(given)
    except BadSpec:  # its words would show what was given
        return _refuse("no lease came on standard input: jobs are started by a platform's executor")
    path = Path(argv[0]) / "job.json"
    try:
        spec = JobSpec.model_validate_json(path.read_bytes())
    except OSError as problem:
        return _refuse(f"{path} cannot be read: {problem.strerror or problem}")
    except BadSpec as problem:
        where = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in problem.errors()[:5])
        return _refuse(f"{path} is not a valid job: {where}")
    return int(asyncio.run(_run(spec, handover, environ)))


async def _run(spec: JobSpec, handover: Handover, environ: Mapping[str, str]) -> Exit:
    job = JobRunner(spec, handover, environ, echo=_echo)
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


if __name__ == "__main__":
    keep_to_itself()
    sys.exit(main(sys.argv[1:], sys.stdin.buffer.read(), os.environ))
