"""`/api/jobs/{run_id}/folders` and `.../checkpoints`: what a training job on another machine has of our disk.

The bearer is the lease token, as in `job_routes`: it opens the base model and the checkpoints of its own run, and takes
in checkpoints of its own run.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, BackgroundTasks, Depends, Request
from fastapi.responses import FileResponse

from osmosis.errors import Conflict
from osmosis.platform import Platform, tables
from osmosis.platform.objects.copies import publish_later
from osmosis.platform.services import checkpoints, job_folders, job_queue, job_specs, training
from osmosis.platform.slow_work import apart, slow
from osmosis.records.contract.job_messages import (
    JobArtifact,
    JobArtifacts,
    JobCheckpoints,
    JobFolders,
    JobRewind,
    StoredCount,
)

from .contract_route import ContractRoute
from .deps import PlatformDep, bearer

router = APIRouter(prefix="/api/jobs/{run_id}", route_class=ContractRoute)

BYTES = "application/octet-stream"
TokenDep = Annotated[str, Depends(bearer)]


@router.get("/folders")
@slow("objects")
def folders(run_id: str, token: TokenDep, platform: PlatformDep) -> JobFolders:
    """The base model, the tokenizer and the checkpoints of the run, as far as they are here: files with checksums."""
    return JobFolders(folders=job_folders.listed(platform, _wanted(platform, run_id, token)))


@router.get("/folders/{name}/{path:path}", response_class=FileResponse)
@slow("objects")
def folder_file(run_id: str, name: str, path: str, token: TokenDep, platform: PlatformDep) -> FileResponse:
    """A file of such a folder; `Range` goes on after a cut."""
    found = job_folders.opened(platform, _wanted(platform, run_id, token), name, path)
    return FileResponse(found, media_type=BYTES)


@router.get("/checkpoints/{name}")
@slow("files")
def checkpoint_there(run_id: str, name: str, token: TokenDep, platform: PlatformDep) -> JobArtifacts:
    """How much came of each file of a checkpoint that is on its way."""
    run = _run_of(platform, run_id, token)
    return JobArtifacts(files=job_folders.IncomingCheckpoint(platform.settings, run, name).there())


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
    """A file of a checkpoint, from `offset` on; what came before a cut stays."""
    run = await apart("files", _run_of, platform, run_id, token)
    incoming = job_folders.IncomingCheckpoint(platform.settings, run, name)
    return JobArtifact(complete=await incoming.take(path, size, offset, request.stream()))


@router.post("/checkpoints")
@slow("files")
def add_checkpoints(
    run_id: str, body: JobCheckpoints, token: TokenDep, platform: PlatformDep, later: BackgroundTasks
) -> StoredCount:
    """Checkpoints that are complete: in the run's folder, by their paths, or sent here, by their names."""
    settings = platform.settings
    run, elsewhere = _held(platform, run_id, token)
    for one in body.checkpoints if elsewhere else ():
        job_folders.IncomingCheckpoint(settings, run, one.path).place()
    with platform.db.write() as session:
        held = job_queue.of_lease(session, run_id, token)
        before = checkpoints.paths(session, run_id)
        stored = checkpoints.store(session, settings, held.run, body.checkpoints)
        gone = before - checkpoints.paths(session, run_id)
        if gone and elsewhere:
            later.add_task(apart, "objects", job_folders.unlisted, platform.objects, settings, sorted(gone))
    later.add_task(apart, "objects", publish_later, platform, f"models/runs/{run_id}/")
    return StoredCount(stored=stored)


@router.post("/rewind")
def rewind(run_id: str, body: JobRewind, token: TokenDep, platform: PlatformDep) -> StoredCount:
    """Forgets what was stored after a step, which is about to be done again; how many rollouts that were."""
    with platform.db.write() as session:
        run = job_queue.of_lease(session, run_id, token).run
        _check_training(run)
        return StoredCount(stored=training.rewind(session, run, body.step))


def _run_of(platform: Platform, run_id: str, token: str) -> tables.Run:
    return _held(platform, run_id, token)[0]


def _held(platform: Platform, run_id: str, token: str) -> tuple[tables.Run, bool]:
    """The training run of this lease, and whether its job has a disk of its own. LeaseLost when it is no longer."""
    with platform.db.read() as session:
        held = job_queue.of_lease(session, run_id, token)
        _check_training(held.run)
        return held.run, not job_specs.on_our_disk(session, held.job)


def _check_training(run: tables.Run) -> None:
    if run.kind != "training":
        raise Conflict(f"run {run.name!r} trains nothing")


def _wanted(platform: Platform, run_id: str, token: str) -> job_folders.FoldersWanted:
    with platform.db.read() as session:
        held = job_queue.of_lease(session, run_id, token)
        _check_training(held.run)
        spec = job_specs.spec_of(session, platform.settings, held.job)
        places = job_specs.places_of(session, platform.settings, held.run, spec)
        return job_folders.wanted_of(session, platform.settings, held.run, places)
