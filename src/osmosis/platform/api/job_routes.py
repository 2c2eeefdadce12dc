"""`/api/jobs/{run_id}`: what a job says and asks. The bearer is the lease token: its holder acts for the run.

A token that is no longer the current one gets 409 LEASE_LOST, and nothing it sends is stored.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, BackgroundTasks, Depends, Query, Request, Response
from fastapi.responses import FileResponse

from osmosis.base.net import is_loopback
from osmosis.errors import Conflict, Forbidden, ValidationError
from osmosis.platform import Platform, tables
from osmosis.platform.objects.copies import fetch_all, publish_later
from osmosis.platform.services import (
    imitation,
    job_artifacts,
    job_files,
    job_queue,
    job_specs,
    merging,
    rollouts,
    run_lifecycle,
    shards,
    tickets,
    training,
)
from osmosis.platform.slow_work import apart, slow
from osmosis.records.config import TrainingConfig
from osmosis.records.contract.job_messages import (
    JobArtifact,
    JobArtifacts,
    JobClaim,
    JobEnd,
    JobLease,
    JobLogs,
    JobMetrics,
    JobModel,
    JobSecrets,
    JobSecretsTaker,
    StoredCount,
    StoredKeys,
)
from osmosis.records.run import HeartbeatReply, JobResult, JobSpec, Progress, RolloutBatch

from .contract_route import ContractRoute
from .deps import PlatformDep, bearer

router = APIRouter(prefix="/api/jobs/{run_id}", route_class=ContractRoute)
tickets_router = APIRouter(prefix="/api/jobs", route_class=ContractRoute)


BYTES = "application/octet-stream"
TokenDep = Annotated[str, Depends(bearer)]


@tickets_router.post("/claim")
def claim(body: JobClaim, ticket: TokenDep, platform: PlatformDep, request: Request) -> JobLease:
    """The lease of a job that a scheduler started, for its ticket, once."""
    _unheard(request)
    with platform.db.write() as session:
        lease = tickets.exchange(session, ticket, body, platform.settings.lease_s)
    if not lease:
        raise Conflict("this ticket was used already", hint="a ticket works once; the run's log notes this")
    return JobLease(run_id=body.run_id, lease=lease)


def _unheard(request: Request) -> None:
    """Forbidden where somebody may listen on the way."""
    if request.url.scheme != "https" and not is_loopback(request.client.host if request.client else ""):
        raise Forbidden("secrets are sent over https only", hint="put TLS before the platform: docs/platform.md")


@router.get("/spec")
async def spec(run_id: str, token: TokenDep, platform: PlatformDep) -> JobSpec:
    """What the job is to do. Copies of what it reads from our disk are there before it is told."""
    return await apart("objects", _spec, platform, run_id, token)


def _spec(platform: Platform, run_id: str, token: str) -> JobSpec:
    made = _spec_of(platform, run_id, token)
    fetch_all(platform, made.dataset_path, made.model_path, made.adapter_path, made.tokenizer_path)
    if made.kind == "training" and made.models_dir:
        fetch_all(platform, made.models_dir, missing_ok=True)
    return made


def _spec_of(platform: Platform, run_id: str, token: str) -> JobSpec:
    with platform.db.write() as session:
        held = job_queue.of_lease(session, run_id, token)
        try:
            return job_specs.spec_of(session, platform.settings, held.job)
        except ValueError as error:  # what an earlier version stored
            raise Conflict(f"this run cannot be started: {error}", hint="submit it again") from error


@router.post("/secrets")
def take_secrets(
    run_id: str, body: JobSecretsTaker, token: TokenDep, platform: PlatformDep, request: Request
) -> JobSecrets:
    """The secrets of the run, to the first who asks under this lease, where nobody listens on the way."""
    _unheard(request)
    with platform.db.write() as session:
        held = job_queue.of_lease(session, run_id, token)
        return JobSecrets(values=job_queue.take_secrets(session, platform.vault, held, body.taker))


@router.get("/source", response_class=FileResponse)
@slow("files")
def source(run_id: str, token: TokenDep, platform: PlatformDep) -> FileResponse:
    """The commit as a git bundle without history; `Range` goes on after a cut."""
    with platform.db.read() as session:
        job_queue.known_lease(session, run_id, token)
        wanted = job_files.wanted_of(session, platform.settings, run_id)
    return FileResponse(job_files.bundle(platform.settings, wanted), media_type=BYTES)


@router.get("/dataset", response_class=FileResponse)
@slow("objects")
def dataset(run_id: str, token: TokenDep, platform: PlatformDep) -> FileResponse:
    """The selected rows with their keys (`datasets.row_file`); `Range` goes on after a cut."""
    with platform.db.read() as session:
        shard = shards.shard_of(session, job_queue.known_lease(session, run_id, token))
        wanted = job_files.wanted_of(session, platform.settings, run_id)
    return FileResponse(job_files.row_file(platform, wanted, shard), media_type=BYTES)


@router.get("/artifacts/{rollout_id}")
def artifacts(run_id: str, rollout_id: str, token: TokenDep, platform: PlatformDep) -> JobArtifacts:
    """How much is there of each file that this rollout left."""
    with platform.db.read() as session:
        run = job_queue.of_lease(session, run_id, token).run
    return JobArtifacts(files=job_artifacts.Incoming(platform.settings, run, rollout_id).there())


@router.put("/artifacts/{rollout_id}/{path:path}")
async def put_artifact(
    run_id: str,
    rollout_id: str,
    path: str,
    size: int,
    token: TokenDep,
    platform: PlatformDep,
    request: Request,
    offset: int = 0,
) -> JobArtifact:
    """A file that a rollout left, from `offset` on; what came before a cut stays."""
    run = await apart("files", _run_of, platform, run_id, token)
    incoming = job_artifacts.Incoming(platform.settings, run, rollout_id)
    return JobArtifact(complete=await incoming.take(path, size, offset, request.stream()))


def _run_of(platform: Platform, run_id: str, token: str) -> tables.Run:
    with platform.db.read() as session:
        return job_queue.of_lease(session, run_id, token).run


@router.post("/heartbeat")
def heartbeat(run_id: str, body: Progress, token: TokenDep, platform: PlatformDep) -> HeartbeatReply:
    with platform.db.write() as session:
        held = job_queue.of_lease(session, run_id, token)
        return job_queue.heartbeat(session, held, body, platform.settings.lease_s)


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
        own = shards.bounds_of(session, job_queue.known_lease(session, run_id, token))
        if bodies:
            limit, offset = max(1, min(limit, 1000)), max(0, offset)
            lines = rollouts.with_bodies(session, run_id, limit=limit, offset=offset, rows=own)
            return Response("".join(f"{line}\n" for line in lines), media_type="application/x-ndjson")
        return StoredKeys(keys=rollouts.keys(session, run_id, rows=own))


@router.get("/examples", response_model=None)
def examples(
    run_id: str,
    token: TokenDep,
    platform: PlatformDep,
    after: int = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> Response:
    """One page of what the run of this lease imitates (`from_run` of its own config), one JSON line each."""
    with platform.db.read() as session:
        run = job_queue.of_lease(session, run_id, token).run
        config = TrainingConfig.model_validate(run.config)
        if config.advanced.method != "sft":
            raise ValidationError(f"run {run.name!r} imitates nothing")
        workspace = session.get_one(tables.Workspace, run.workspace_id)
        source = imitation.source(session, workspace, config)
        lines = [one.to_line() for one in imitation.page(session, source, config, after=after, limit=limit)]
    return Response(b"".join(lines), media_type="application/x-ndjson")


@router.post("/rollouts")
def store(run_id: str, body: RolloutBatch, token: TokenDep, platform: PlatformDep) -> StoredCount:
    with platform.db.write() as session:
        held = job_queue.of_lease(session, run_id, token)
        job_queue.extend(held.job, platform.settings.lease_s)
        count = rollouts.store(session, run_id, body.rollouts)
        job_queue.stored(held.job, count)
        return StoredCount(stored=count)


@router.post("/logs")
def add_logs(run_id: str, body: JobLogs, token: TokenDep, platform: PlatformDep) -> StoredCount:
    with platform.db.write() as session:
        held = job_queue.of_lease(session, run_id, token)
        shard = held.job.shard if held.job.shards > 1 else None
        run_lifecycle.add_lines(session, held.run, body.lines, shard=shard)
    return StoredCount(stored=len(body.lines))


@router.post("/metrics")
def add_metrics(run_id: str, body: JobMetrics, token: TokenDep, platform: PlatformDep) -> StoredCount:
    with platform.db.write() as session:
        job_queue.of_lease(session, run_id, token)
        return StoredCount(stored=training.store(session, run_id, body.points))


@router.post("/model")
@slow("objects")
def add_model(run_id: str, body: JobModel, token: TokenDep, platform: PlatformDep) -> StoredCount:
    """Not in one session: the files are read."""
    with platform.db.read() as session:
        run = job_queue.of_lease(session, run_id, token).run
        if run.kind != run_lifecycle.MERGE:
            raise Conflict(f"run {run.name!r} makes no model")
    merging.made(platform, run, body.files)
    return StoredCount(stored=1)


@router.post("/finish")
def finish(run_id: str, body: JobResult, token: TokenDep, platform: PlatformDep, later: BackgroundTasks) -> JobEnd:
    """The job's last message. A retry, after a lost answer, changes nothing."""
    later.add_task(shards.merge, platform, run_id)
    later.add_task(apart, "objects", publish_later, platform, f"runs/{run_id}/", f"models/runs/{run_id}/")
    with platform.db.write() as session:
        if job_queue.over(session, run_id, token) == body.status.value:
            return JobEnd(status=body.status.value)
        held = job_queue.of_lease(session, run_id, token)
        job_queue.finish(session, held, body, max_starts=platform.settings.max_starts)
        return JobEnd(status=held.run.status)
