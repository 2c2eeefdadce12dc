"""`python -m osmosis.jobs --run URL`: read the lease from standard input, fetch the job's spec, and run it."""

import asyncio
import os
import secrets
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import orjson
from pydantic import ValidationError as RecordError

from osmosis.base.processes import protect_memory
from osmosis.errors import LeaseLost, OsmosisError, ValidationError
from osmosis.jobs.reporter import JobClient, patiently
from osmosis.jobs.runner import Exit, JobRunner
from osmosis.records.api.workers import JobClaim, JobLease
from osmosis.records.run.job import Handover, JobEntry, JobSpec, LogLine

BAD_CALL = 2
PATH_OF_JOBS = "/api/jobs/"


@dataclass(frozen=True, slots=True)
class JobAddress:
    platform_url: str
    run_id: str

    @classmethod
    def parse(cls, url: str) -> "JobAddress":
        platform, path, run_id = url.rstrip("/").rpartition(PATH_OF_JOBS)
        if not path or not platform or not run_id or "/" in run_id:
            raise ValidationError(f"{url!r} is not the address of a job: https://PLATFORM{PATH_OF_JOBS}RUN")
        return cls(platform, run_id)


def main(argv: list[str], standard_input: bytes, environ: Mapping[str, str]) -> int:
    if len(argv) != 2 or argv[0] != "--run":
        return _refuse("usage: python -m osmosis.jobs --run https://PLATFORM/api/jobs/RUN")
    try:
        entry = JobEntry.model_validate_json(standard_input)
    except RecordError:  # its message would show what came in
        return _refuse("no lease came on standard input: jobs are started by a worker")
    try:
        return int(asyncio.run(_run(JobAddress.parse(argv[1]), entry, environ)))
    except LeaseLost as problem:
        sys.stderr.write(f"{_describe(problem)}\n")
        return int(Exit.LEASE_LOST)
    except OsmosisError as problem:
        return _refuse(_describe(problem))
    except RecordError as problem:
        where = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in problem.errors()[:5])
        return _refuse(f"this version cannot run the platform's job: {where}")


async def load_job(address: JobAddress, entry: JobEntry) -> tuple[JobSpec, Handover]:
    lease = entry.lease or await _redeem_ticket(address, entry)
    client = JobClient(address.platform_url, address.run_id, lease, ca_file=entry.ca_file)
    await client.open()
    try:
        spec = JobSpec.model_validate(await patiently(lambda: client.request("GET", "spec", None)))
        taker = orjson.dumps({"taker": secrets.token_urlsafe(32)})
        answer = await patiently(lambda: client.post("secrets", taker))
    finally:
        await client.close()
    update: dict[str, object] = {
        "platform_url": address.platform_url,
        "work_dir": _local_folder(entry, entry.work_dir),
        "cache_dir": _local_folder(entry, entry.cache_dir),
    }
    if entry.sandbox is not None:
        required = spec.sandbox.required or entry.sandbox.required
        update["sandbox"] = entry.sandbox.model_copy(update={"required": required})
    if entry.gate is not None:
        update["gate"] = entry.gate
    return spec.model_copy(update=update), Handover(token=lease, secrets=answer.get("values", {}))


async def _redeem_ticket(address: JobAddress, entry: JobEntry) -> str:
    client = JobClient(address.platform_url, "claim", entry.ticket, ca_file=entry.ca_file)
    claim = JobClaim(run_id=address.run_id, taker=secrets.token_urlsafe(32))
    await client.open()
    try:
        answer = await patiently(lambda: client.post("", claim.model_dump_json().encode()))
    finally:
        await client.close()
    return JobLease.model_validate(answer).lease


def _local_folder(entry: JobEntry, folder: str) -> str:
    return os.path.expandvars(folder) if entry.ticket else folder


async def _run(address: JobAddress, entry: JobEntry, environ: Mapping[str, str]) -> Exit:
    spec, handover = await load_job(address, entry)
    job = JobRunner(spec, handover, environ, echo=_echo, ca_file=entry.ca_file)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, job.stop)
    return await job.run()


def _echo(line: LogLine) -> None:
    if line.level != "debug":
        sys.stderr.write(f"{line.timestamp:%H:%M:%S} {line.level} {line.step}: {line.message}\n")
        sys.stderr.flush()


def _describe(problem: OsmosisError) -> str:
    return f"{problem.message}: {problem.hint}" if problem.hint else problem.message


def _refuse(message: str) -> int:
    sys.stderr.write(f"{message}\n")
    return BAD_CALL


if __name__ == "__main__":
    protect_memory()
    sys.exit(main(sys.argv[1:], sys.stdin.buffer.read(), os.environ))
