"""Routes of jobs and workers. A job's bearer is its lease; one that is not current gets 409 LEASE_LOST."""

from typing import Annotated

from fastapi import APIRouter, BackgroundTasks, Depends, Query, Request, Response
from fastapi.responses import FileResponse

from osmosis.base.net import is_loopback
from osmosis.errors import Conflict, Forbidden, ValidationError
from osmosis.platform import Platform, tables
from osmosis.platform.auth import tokens
from osmosis.platform.auth.dependencies import Caller, PersonDep, PlatformDep, bearer, caller_with
from osmosis.platform.background import run_apart, slow
from osmosis.platform.http import JsonRoute, Reading, Writing
from osmosis.platform.models import merging, service as models
from osmosis.platform.objects.publish import fetch_all, publish_later
from osmosis.platform.runs import lifecycle, rollouts
from osmosis.platform.scheduling import job_files, job_spec, leases, shards, workers
from osmosis.platform.scheduling.workers import WorkerDesk
from osmosis.platform.training import service
from osmosis.records.api import workers as worker_api
from osmosis.records.api.body import Nothing
from osmosis.records.config.optimize import Optimization
from osmosis.records.config.run_config import TrainingConfig
from osmosis.records.run.job import HeartbeatReply, JobResult, JobSpec, Progress, RolloutBatch

router = APIRouter(prefix="/api/jobs/{run_id}", route_class=JsonRoute)
tickets_router = APIRouter(prefix="/api/jobs", route_class=JsonRoute)
workers_router = APIRouter(prefix="/api/workers", route_class=JsonRoute)
people_router = APIRouter(prefix="/api/cli/workers", route_class=JsonRoute)

BYTES = "application/octet-stream"
TokenDep = Annotated[str, Depends(bearer)]


@tickets_router.post("/claim")
def claim(body: worker_api.JobClaim, ticket: TokenDep, platform: PlatformDep, request: Request) -> worker_api.JobLease:
    """Give a job that a scheduler started its lease for its ticket, once."""
    _unheard(request)
    with platform.db.write() as session:
        lease = leases.redeem_ticket(session, ticket, body, platform.settings.lease_s)
    if not lease:
        raise Conflict("this ticket was used already", hint="a ticket works once; the run's log notes this")
    return worker_api.JobLease(run_id=body.run_id, lease=lease)


def _unheard(request: Request) -> None:
    if request.url.scheme != "https" and not is_loopback(request.client.host if request.client else ""):
        raise Forbidden("secrets are sent over https only", hint="put TLS before the platform: docs/platform.md")


@router.get("/spec")
@slow("objects")
def spec(run_id: str, token: TokenDep, platform: PlatformDep) -> JobSpec:
    """Return what the job is to do, after copies of what it reads from our disk are in place."""
    with platform.db.write() as session:
        held_job = leases.require_lease(session, run_id, token)
        try:
            built = job_spec.build_spec(session, platform.settings, held_job.job)
        except ValueError as error:  # what an earlier version stored
            raise Conflict(f"this run cannot be started: {error}", hint="submit it again") from error
    models = built.model_path, built.adapter_path, built.tokenizer_path, built.teacher_path
    fetch_all(platform, built.dataset_path, *models)
    if built.kind == "training" and built.models_dir:
        fetch_all(platform, built.models_dir, missing_ok=True)
    return built


@router.post("/secrets")
def take_secrets(
    run_id: str,
    body: worker_api.JobSecretsTaker,
    token: TokenDep,
    platform: PlatformDep,
    session: Writing,
    request: Request,
) -> worker_api.JobSecrets:
    """Return the secrets of the run to the first who asks under this lease, where nobody can listen on the way."""
    _unheard(request)
    held_job = leases.require_lease(session, run_id, token)
    return worker_api.JobSecrets(values=leases.take_secrets(session, platform.vault, held_job, body.taker))


@router.get("/source", response_class=FileResponse)
@slow("files")
def source(run_id: str, token: TokenDep, platform: PlatformDep) -> FileResponse:
    with platform.db.read() as session:
        leases.require_reader(session, run_id, token)
        sources = job_files.load_sources(session, platform.settings, run_id)
    return FileResponse(job_files.make_bundle(platform.settings, sources), media_type=BYTES)


@router.get("/dataset", response_class=FileResponse)
@slow("objects")
def dataset(run_id: str, token: TokenDep, platform: PlatformDep) -> FileResponse:
    with platform.db.read() as session:
        shard = shards.shard_of(session, leases.require_reader(session, run_id, token))
        sources = job_files.load_sources(session, platform.settings, run_id)
    return FileResponse(job_files.make_row_file(platform, sources, shard), media_type=BYTES)


def _find_artifacts(
    run_id: str, rollout_id: str, token: TokenDep, platform: PlatformDep
) -> job_files.IncomingArtifacts:
    with platform.db.read() as session:
        run = leases.require_lease(session, run_id, token).run
    return job_files.IncomingArtifacts(platform.settings, run, rollout_id)


ArtifactsDep = Annotated[job_files.IncomingArtifacts, Depends(_find_artifacts)]


@router.get("/artifacts/{rollout_id}")
def artifacts(incoming: ArtifactsDep) -> worker_api.JobArtifacts:
    return worker_api.JobArtifacts(files=incoming.list_sizes())


@router.put("/artifacts/{rollout_id}/{path:path}")
async def put_artifact(
    path: str, size: int, incoming: ArtifactsDep, request: Request, offset: int = 0
) -> worker_api.JobArtifact:
    return worker_api.JobArtifact(complete=await incoming.take(path, size, offset, request.stream()))


@router.post("/heartbeat")
def heartbeat(run_id: str, body: Progress, token: TokenDep, platform: PlatformDep, session: Writing) -> HeartbeatReply:
    held_job = leases.require_lease(session, run_id, token)
    return leases.heartbeat(session, held_job, body, platform.settings.lease_s)


@router.get("/rollouts", response_model=worker_api.StoredKeys)
def stored(
    run_id: str, token: TokenDep, session: Reading, bodies: bool = False, limit: int = 200, offset: int = 0
) -> worker_api.StoredKeys | Response:
    """List the stored keys; with `bodies=true` one page of the rollouts themselves, one JSON line each."""
    own = shards.bounds_of(session, leases.require_reader(session, run_id, token))
    if bodies:
        limit, offset = max(1, min(limit, 1000)), max(0, offset)
        lines = rollouts.list_bodies(session, run_id, limit=limit, offset=offset, rows=own)
        return Response("".join(f"{line}\n" for line in lines), media_type="application/x-ndjson")
    return worker_api.StoredKeys(keys=rollouts.list_keys(session, run_id, rows=own))


@router.get("/examples", response_model=None)
def examples(
    run_id: str, token: TokenDep, session: Reading, after: int = 0, limit: Annotated[int, Query(ge=1, le=1000)] = 200
) -> Response:
    """Send a page of the examples that this lease's run learns from (`from_run` of its config), a JSON line each."""
    run = leases.require_lease(session, run_id, token).run
    config = TrainingConfig.model_validate(run.config)
    if config.advanced.method == "grpo":
        raise ValidationError(f"run {run.name!r} learns from no other run")
    workspace = session.get_one(tables.Workspace, run.workspace_id)
    source = service.get_source(session, workspace, config)
    examples = service.list_examples(session, source, config, after=after, limit=limit)
    lines = [rollout.to_line() for rollout in examples]
    return Response(b"".join(lines), media_type="application/x-ndjson")


@router.post("/rollouts")
def store(
    run_id: str, body: RolloutBatch, token: TokenDep, platform: PlatformDep, session: Writing
) -> worker_api.StoredCount:
    held_job = leases.require_lease(session, run_id, token)
    leases.extend(held_job.job, platform.settings.lease_s)
    count = rollouts.store(session, run_id, body.rollouts)
    if count:
        leases.note_progress(held_job.job)
    return worker_api.StoredCount(stored=count)


@router.post("/logs")
def add_logs(run_id: str, body: worker_api.JobLogs, token: TokenDep, session: Writing) -> worker_api.StoredCount:
    held_job = leases.require_lease(session, run_id, token)
    shard = held_job.job.shard if held_job.job.shards > 1 else None
    lifecycle.add_lines(session, held_job.work, body.lines, shard=shard)
    return worker_api.StoredCount(stored=len(body.lines))


@router.post("/metrics")
def add_metrics(run_id: str, body: worker_api.JobMetrics, token: TokenDep, session: Writing) -> worker_api.StoredCount:
    leases.require_lease(session, run_id, token)
    return worker_api.StoredCount(stored=service.store(session, run_id, body.points))


@router.post("/optimization")
def set_optimization(run_id: str, body: Optimization, token: TokenDep, session: Writing) -> worker_api.StoredCount:
    leases.require_lease(session, run_id, token).run.optimization = body.to_dict()
    return worker_api.StoredCount(stored=1)


@router.post("/model")
@slow("objects")
def add_model(run_id: str, body: worker_api.JobModel, token: TokenDep, platform: PlatformDep) -> worker_api.StoredCount:
    with platform.db.read() as session:
        merge = leases.require_lease(session, run_id, token).work
        if not isinstance(merge, tables.Merge):
            raise Conflict(f"run {merge.name!r} makes no model")
    merging.store_model(platform, merge, body.files)
    return worker_api.StoredCount(stored=1)


@router.post("/finish")
def finish(
    run_id: str, body: JobResult, token: TokenDep, platform: PlatformDep, session: Writing, later: BackgroundTasks
) -> worker_api.JobEnd:
    """Take the job's last message. A retry, after a lost answer, changes nothing."""
    later.add_task(shards.merge, platform, run_id)
    later.add_task(run_apart, "objects", publish_later, platform, f"runs/{run_id}/", f"models/runs/{run_id}/")
    if leases.find_end_status(session, run_id, token) == body.status.value:
        return worker_api.JobEnd(status=body.status.value)
    held_job = leases.require_lease(session, run_id, token)
    leases.finish(session, held_job, body, max_starts=platform.settings.max_starts)
    return worker_api.JobEnd(status=held_job.work.status)


@router.get("/folders")
@slow("objects")
def folders(run_id: str, token: TokenDep, platform: PlatformDep) -> worker_api.JobFolders:
    return worker_api.JobFolders(folders=job_files.list_folders(platform, _load_sources(platform, run_id, token)))


@router.get("/folders/{name}/{path:path}", response_class=FileResponse)
@slow("objects")
def folder_file(run_id: str, name: str, path: str, token: TokenDep, platform: PlatformDep) -> FileResponse:
    file = job_files.get_file(platform, _load_sources(platform, run_id, token), name, path)
    return FileResponse(file, media_type=BYTES)


def _find_checkpoint(run_id: str, name: str, token: TokenDep, platform: PlatformDep) -> job_files.IncomingCheckpoint:
    run, _ = _require_training(platform, run_id, token)
    return job_files.IncomingCheckpoint(platform.settings, run, name)


CheckpointDep = Annotated[job_files.IncomingCheckpoint, Depends(_find_checkpoint)]


@router.get("/checkpoints/{name}")
@slow("files")
def checkpoint_there(incoming: CheckpointDep) -> worker_api.JobArtifacts:
    return worker_api.JobArtifacts(files=incoming.list_sizes())


@router.put("/checkpoints/{name}/{path:path}")
async def put_checkpoint_file(
    path: str, size: int, incoming: CheckpointDep, request: Request, offset: int = 0
) -> worker_api.JobArtifact:
    return worker_api.JobArtifact(complete=await incoming.take(path, size, offset, request.stream()))


@router.post("/checkpoints")
@slow("files")
def add_checkpoints(
    run_id: str, body: worker_api.JobCheckpoints, token: TokenDep, platform: PlatformDep, later: BackgroundTasks
) -> worker_api.StoredCount:
    """Store complete checkpoints: in the run's folder, by their paths, or sent here, by their names."""
    settings = platform.settings
    run, elsewhere = _require_training(platform, run_id, token)
    for report in body.checkpoints if elsewhere else ():
        job_files.IncomingCheckpoint(settings, run, report.path).publish()
    with platform.db.write() as session:
        held_job = leases.require_lease(session, run_id, token)
        before = models.list_checkpoint_paths(session, run_id)
        stored = models.store_checkpoints(session, settings, held_job.run, body.checkpoints)
        removed = before - models.list_checkpoint_paths(session, run_id)
        if removed and elsewhere:
            later.add_task(run_apart, "objects", job_files.delete_unlisted, platform.objects, settings, sorted(removed))
    later.add_task(run_apart, "objects", publish_later, platform, f"models/runs/{run_id}/")
    return worker_api.StoredCount(stored=stored)


@router.post("/rewind")
def rewind(run_id: str, body: worker_api.JobRewind, token: TokenDep, session: Writing) -> worker_api.StoredCount:
    """Forget what was stored after a step, which is about to be done again; return how many rollouts that were."""
    run = leases.require_lease(session, run_id, token).run
    _check_training(run)
    return worker_api.StoredCount(stored=service.rewind(session, run, body.step))


def _require_training(platform: Platform, run_id: str, token: str) -> tuple[tables.Run, bool]:
    with platform.db.read() as session:
        held_job = leases.require_lease(session, run_id, token)
        _check_training(held_job.run)
        return held_job.run, not job_spec.is_on_our_disk(session, held_job.job)


def _check_training(run: tables.Run) -> None:
    if run.kind != "training":
        raise Conflict(f"run {run.name!r} trains nothing")


def _load_sources(platform: Platform, run_id: str, token: str) -> job_files.FolderSources:
    with platform.db.read() as session:
        held_job = leases.require_lease(session, run_id, token)
        _check_training(held_job.run)
        spec = job_spec.build_spec(session, platform.settings, held_job.job)
        places = job_spec.add_places(session, platform.settings, held_job.run, spec)
        return job_files.load_folder_sources(session, platform.settings, held_job.run, places)


WorkerDep = Annotated[Caller, Depends(caller_with("worker"))]
AsksForWork = Annotated[Caller, Depends(caller_with("worker", tokens.require_worker))]


def _desk(platform: Platform, caller: Caller) -> WorkerDesk:
    return WorkerDesk(platform, caller.token.id, caller.token.workspace_id)


@people_router.get("")
def list_workers(caller: PersonDep, session: Reading) -> worker_api.WorkerList:
    return worker_api.WorkerList(workers=workers.list_rows(session, caller.user))


@people_router.post("/{name}/drain")
def drain(name: str, caller: PersonDep, session: Writing) -> Nothing:
    workers.drain(session, caller, workers.require_managed(session, caller.user, name))
    return Nothing()


@people_router.delete("/{name}")
def remove(name: str, caller: PersonDep, platform: PlatformDep, session: Writing) -> worker_api.WorkerRemoved:
    worker = workers.require_managed(session, caller.user, name)
    return worker_api.WorkerRemoved(released=workers.remove(platform, session, caller, worker))


@workers_router.post("/hello")
def hello(body: worker_api.WorkerHello, caller: AsksForWork, platform: PlatformDep) -> worker_api.WorkerWelcome:
    return _desk(platform, caller).hello(body)


@workers_router.post("/claim")
def claim_round(body: worker_api.WorkerRound, caller: AsksForWork, platform: PlatformDep) -> worker_api.WorkerOrders:
    """One round: how the worker's jobs are; the answer says which to end, and has at most one to start."""
    return _desk(platform, caller).round(body)


@workers_router.post("/started")
def report_started(body: worker_api.JobStarted, caller: WorkerDep, platform: PlatformDep) -> Nothing:
    _desk(platform, caller).started(body)
    return Nothing()


@workers_router.post("/leave")
def report_leaving(body: worker_api.WorkerLeaves, caller: WorkerDep, platform: PlatformDep) -> Nothing:
    _desk(platform, caller).leave(body)
    return Nothing()
