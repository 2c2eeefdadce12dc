"""How a job begins: it has the address of its run and the lease, and asks the platform for all the rest.

The secrets are handed over once for each lease: whoever steals a lease later gets none. A job that a scheduler started
has a ticket, and changes that for the lease first. Runs nothing yet.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass

import orjson

from osmosis.errors import OsmosisError, ValidationError
from osmosis.records.contract.job_messages import JobClaim, JobLease
from osmosis.records.run import Handover, JobEntry, JobSpec

from .job_client import JobClient, patiently

MARK = "/api/jobs/"


@dataclass(frozen=True, slots=True)
class JobAddress:
    """`https://platform/api/jobs/<run>`: where a job speaks to."""

    platform_url: str
    run_id: str

    @classmethod
    def of(cls, url: str) -> JobAddress:
        """ValidationError for another kind of URL."""
        platform, mark, run_id = url.rstrip("/").rpartition(MARK)
        if not mark or not platform or not run_id or "/" in run_id:
            raise ValidationError(f"{url!r} is not the address of a job: https://PLATFORM{MARK}RUN")
        return cls(platform, run_id)


async def enter(address: JobAddress, entry: JobEntry) -> tuple[JobSpec, Handover]:
    """What the job is to do, with its places on this machine, and its secrets.

    Raises `LeaseLost` when another process has the job, `NetworkError` when the platform cannot be reached.
    """
    lease = entry.lease or await _claimed(address, entry)
    client = JobClient(address.platform_url, address.run_id, lease, ca_file=entry.ca_file)
    await client.open()
    try:
        told = await patiently(lambda: client.request("GET", "spec", None))
        spec = JobSpec.model_validate(told)
        taker = orjson.dumps({"taker": secrets.token_urlsafe(32)})
        given = await patiently(lambda: client.post("secrets", taker))
    finally:
        await client.close()
    places: dict[str, object] = {
        "platform_url": address.platform_url,
        "work_dir": _here(entry, entry.work_dir),
        "cache_dir": _here(entry, entry.cache_dir),
    }
    if entry.sandbox is not None:
        required = spec.sandbox.required or entry.sandbox.required
        places["sandbox"] = entry.sandbox.model_copy(update={"required": required})
    if entry.gate is not None:
        places["gate"] = entry.gate
    return spec.model_copy(update=places), Handover(token=lease, secrets=given.get("values", {}))


async def _claimed(address: JobAddress, entry: JobEntry) -> str:
    """The lease, for the ticket: nothing of it is left that somebody could use."""
    client = JobClient(address.platform_url, "claim", entry.ticket, ca_file=entry.ca_file)
    claim = JobClaim(run_id=address.run_id, taker=secrets.token_urlsafe(32))
    await client.open()
    try:
        answer = await patiently(lambda: client.post("", claim.model_dump_json().encode()))
    finally:
        await client.close()
    return JobLease.model_validate(answer).lease


def _here(entry: JobEntry, folder: str) -> str:
    """A folder on this machine: what a ticket came with was written on another one."""
    return os.path.expandvars(folder) if entry.ticket else folder


def why_not(problem: OsmosisError) -> str:
    """In one line, for the executor's log."""
    return f"{problem.message}: {problem.hint}" if problem.hint else problem.message
