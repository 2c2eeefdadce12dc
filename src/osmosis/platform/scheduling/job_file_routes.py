"""Routes by which a training job on another machine exchanges models and checkpoints. The bearer is the lease token,
which is good for the job's own run."""

from typing import Annotated

from fastapi import APIRouter, BackgroundTasks, Depends, Request
from fastapi.responses import FileResponse

from osmosis.errors import Conflict
from osmosis.platform import Platform, tables
from osmosis.platform.auth.dependencies import PlatformDep, bearer
from osmosis.platform.background import run_apart, slow
from osmosis.platform.http.json_route import JsonRoute
from osmosis.platform.objects.publish import publish_later
from osmosis.platform.scheduling import job_folders, job_spec, leases
from osmosis.platform.training import checkpoints, service
from osmosis.records.api.jobs import JobArtifact, JobArtifacts, JobCheckpoints, JobFolders, JobRewind, StoredCount

router = APIRouter(prefix="/api/jobs/{run_id}", route_class=JsonRoute)

BYTES = "application/octet-stream"
TokenDep = Annotated[str, Depends(bearer)]


@router.get("/folders")
@slow("objects")
def folders(run_id: str, token: TokenDep, platform: PlatformDep) -> JobFolders:
    return JobFolders(folders=job_folders.list_folders(platform, _load_sources(platform, run_id, token)))


@router.get("/folders/{name}/{path:path}", response_class=FileResponse)
@slow("objects")
def folder_file(run_id: str, name: str, path: str, token: TokenDep, platform: PlatformDep) -> FileResponse:
    file = job_folders.get_file(platform, _load_sources(platform, run_id, token), name, path)
    return FileResponse(file, media_type=BYTES)


@router.get("/checkpoints/{name}")
@slow("files")
def checkpoint_there(run_id: str, name: str, token: TokenDep, platform: PlatformDep) -> JobArtifacts:
    run = _run_of(platform, run_id, token)
    return JobArtifacts(files=job_folders.IncomingCheckpoint(platform.settings, run, name).list_sizes())


@router.put("/checkpoints/{name}/{path:path}")
async def put_checkpoint_file(
    run_id: str,
    name: str,
    path: str,
    size: int,
    token: TokenDep,
    platform: PlatformDep,
    request: Request,
    offset: int = 0,
) -> JobArtifact:
    run = await run_apart("files", _run_of, platform, run_id, token)
    incoming = job_folders.IncomingCheckpoint(platform.settings, run, name)
    return JobArtifact(complete=await incoming.take(path, size, offset, request.stream()))


@router.post("/checkpoints")
@slow("files")
def add_checkpoints(
    run_id: str, body: JobCheckpoints, token: TokenDep, platform: PlatformDep, later: BackgroundTasks
) -> StoredCount:
    """Store complete checkpoints: in the run's folder, by their paths, or sent here, by their names."""
    settings = platform.settings
    run, elsewhere = _require_training(platform, run_id, token)
    for report in body.checkpoints if elsewhere else ():
        job_folders.IncomingCheckpoint(settings, run, report.path).publish()
    with platform.db.write() as session:
        held_job = leases.require_lease(session, run_id, token)
        before = checkpoints.list_paths(session, run_id)
        stored = checkpoints.store(session, settings, held_job.run, body.checkpoints)
        removed = before - checkpoints.list_paths(session, run_id)
        if removed and elsewhere:
            later.add_task(
                run_apart, "objects", job_folders.delete_unlisted, platform.objects, settings, sorted(removed)
            )
    later.add_task(run_apart, "objects", publish_later, platform, f"models/runs/{run_id}/")
    return StoredCount(stored=stored)


@router.post("/rewind")
def rewind(run_id: str, body: JobRewind, token: TokenDep, platform: PlatformDep) -> StoredCount:
    """Forget what was stored after a step, which is about to be done again; return how many rollouts that were."""
    with platform.db.write() as session:
        run = leases.require_lease(session, run_id, token).run
        _check_training(run)
        return StoredCount(stored=service.rewind(session, run, body.step))


def _run_of(platform: Platform, run_id: str, token: str) -> tables.Run:
    return _require_training(platform, run_id, token)[0]


def _require_training(platform: Platform, run_id: str, token: str) -> tuple[tables.Run, bool]:
    with platform.db.read() as session:
        held_job = leases.require_lease(session, run_id, token)
        _check_training(held_job.run)
        return held_job.run, not job_spec.is_on_our_disk(session, held_job.job)


def _check_training(run: tables.Run) -> None:
    if run.kind != "training":
        raise Conflict(f"run {run.name!r} trains nothing")


def _load_sources(platform: Platform, run_id: str, token: str) -> job_folders.FolderSources:
    with platform.db.read() as session:
        held_job = leases.require_lease(session, run_id, token)
        _check_training(held_job.run)
        spec = job_spec.build_spec(session, platform.settings, held_job.job)
        places = job_spec.add_places(session, platform.settings, held_job.run, spec)
        return job_folders.load_sources(session, platform.settings, held_job.run, places)
