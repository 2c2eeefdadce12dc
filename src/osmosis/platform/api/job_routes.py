"""`/api/jobs/{run_id}`: what a job says and asks. The bearer is the lease token: its holder acts for the run.

A token that is no longer the current one gets 409 LEASE_LOST, and nothing it sends is stored.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Response
from sqlalchemy.orm import Session

from osmosis.errors import LeaseLost
from osmosis.platform import tables
from osmosis.platform.security.tokens import hash_token
from osmosis.platform.services import checkpoints, rollouts, run_lifecycle, training
from osmosis.records.contract.job_messages import JobCheckpoints, JobEnd, JobLogs, JobMetrics, StoredCount, StoredKeys
from osmosis.records.run import HeartbeatReply, JobResult, Progress, RolloutBatch

from .contract_route import ContractRoute
from .deps import PlatformDep, bearer

router = APIRouter(prefix="/api/jobs/{run_id}", route_class=ContractRoute)


TokenDep = Annotated[str, Depends(bearer)]


@router.post("/heartbeat")
def heartbeat(run_id: str, body: Progress, token: TokenDep, platform: PlatformDep) -> HeartbeatReply:
    with platform.db.write() as session:
        run = run_lifecycle.of_lease(session, run_id, token)
        stop = run_lifecycle.heartbeat(session, run, body, platform.settings.lease_s)
    return HeartbeatReply(stop=stop)


@router.get("/rollouts", response_model=StoredKeys)
def stored(
    run_id: str,
    token: TokenDep,
    platform: PlatformDep,
    bodies: bool = False,
    limit: int = 200,
    offset: int = 0,
) -> StoredKeys | Response:
    """The keys that are stored; with `bodies=true` one page of the rollouts themselves, one JSON line each."""
    with platform.db.read() as session:
        check_lease(session, run_id, token)
        if bodies:
            lines = rollouts.with_bodies(session, run_id, limit=max(1, min(limit, 1000)), offset=max(0, offset))
            return Response("".join(f"{line}\n" for line in lines), media_type="application/x-ndjson")
        return StoredKeys(keys=rollouts.keys(session, run_id))


def check_lease(session: Session, run_id: str, token: str) -> None:
    """LeaseLost unless this is the lease of the run. It may be over: a job asks what is stored also at its end."""
    run = session.get(tables.Run, run_id)
    if run is None or run.lease_hash is None or run.lease_hash != hash_token(token):
        raise LeaseLost("another job has taken over this run")


@router.post("/rollouts")
def store(run_id: str, body: RolloutBatch, token: TokenDep, platform: PlatformDep) -> StoredCount:
    with platform.db.write() as session:
        run = run_lifecycle.of_lease(session, run_id, token)
        run_lifecycle.extend(run, platform.settings.lease_s)
        return StoredCount(stored=rollouts.store(session, run_id, body.rollouts))


@router.post("/logs")
def add_logs(run_id: str, body: JobLogs, token: TokenDep, platform: PlatformDep) -> StoredCount:
    with platform.db.write() as session:
        run = run_lifecycle.of_lease(session, run_id, token)
        run_lifecycle.add_lines(session, run, body.lines)
    return StoredCount(stored=len(body.lines))


@router.post("/metrics")
def add_metrics(run_id: str, body: JobMetrics, token: TokenDep, platform: PlatformDep) -> StoredCount:
    with platform.db.write() as session:
        run_lifecycle.of_lease(session, run_id, token)
        return StoredCount(stored=training.store(session, run_id, body.points))


@router.post("/checkpoints")
def add_checkpoints(run_id: str, body: JobCheckpoints, token: TokenDep, platform: PlatformDep) -> StoredCount:
    with platform.db.write() as session:
        run = run_lifecycle.of_lease(session, run_id, token)
        return StoredCount(stored=checkpoints.store(session, platform.settings, run, body.checkpoints))


@router.post("/finish")
def finish(run_id: str, body: JobResult, token: TokenDep, platform: PlatformDep) -> JobEnd:
    """The job's last message. A retry, after a lost answer, changes nothing."""
    with platform.db.write() as session:
        known = session.get(tables.Run, run_id, with_for_update=True)
        if known is not None and known.lease_hash == hash_token(token) and known.status == body.status.value:
            return JobEnd(status=known.status)
        run = run_lifecycle.of_lease(session, run_id, token)
        run_lifecycle.finish(session, run, body, max_starts=platform.settings.max_starts)
        return JobEnd(status=run.status)
