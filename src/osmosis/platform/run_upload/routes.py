from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool

from osmosis.errors import NotFound
from osmosis.platform import Platform, tables
from osmosis.platform.auth.dependencies import PlatformDep, Scope, ScopeDep
from osmosis.platform.background import run_in_turn, slow
from osmosis.platform.http import JsonRoute, Reading, Writing
from osmosis.platform.objects.parts import SIGNED, receive_part
from osmosis.platform.run_upload import finished_run, sessions
from osmosis.platform.run_upload.run_files import Manifest
from osmosis.platform.workspaces import audit
from osmosis.records.api.datasets import ImportFile, ImportPaths, ImportSent, ImportSession, ImportUpload, ImportUploads

router = APIRouter(route_class=JsonRoute)
PREFIX = "/api/cli/eval-runs/imports"


@router.post(PREFIX)
def create(body: Manifest, platform: PlatformDep, session: Writing, scope: ScopeDep) -> ImportSession:
    """Open a session, or resume the one with the same manifest: only its pending files are still needed."""
    row = sessions.open_session(session, scope.workspace, scope.user, body)
    audit.note(session, scope, "run.upload", row.local_run_id, workspace=scope.workspace)
    return sessions.body(session, platform.settings, row)


@router.get(f"{PREFIX}/{{session_id}}")
def get_session(session_id: str, platform: PlatformDep, session: Reading, scope: ScopeDep) -> ImportSession:
    return sessions.body(session, platform.settings, sessions.find(session, scope.workspace, session_id))


@router.post(f"{PREFIX}/{{session_id}}/uploads")
def uploads(session_id: str, body: ImportPaths, platform: PlatformDep, scope: ScopeDep) -> ImportUploads:
    with platform.db.read() as session:
        files = sessions.get_files(session, sessions.find(session, scope.workspace, session_id), body.paths)
    plans = [
        ImportUpload(path=file.path, size=file.size, sha256=file.sha256, upload=sessions.upload_plan(platform, file))
        for file in files
    ]
    return ImportUploads(files=plans)


@router.put("/api/objects/imports/{session_id}/{number}/{part}", dependencies=SIGNED)
async def put_part(session_id: str, number: int, part: int, request: Request, platform: PlatformDep) -> Response:
    file = await run_in_threadpool(sessions.get_awaited_file, platform, session_id, number)
    parts = sessions.parts_of(platform, file)
    if not 1 <= part <= parts.count:
        raise NotFound(f"{file.path} has no part {part}")
    return await receive_part(platform, sessions.parts_key(session_id, number), parts, part, request.stream())


@router.post(f"{PREFIX}/{{session_id}}/uploads/complete")
@slow("objects")
def complete(session_id: str, body: ImportSent, platform: PlatformDep, scope: ScopeDep) -> ImportFile:
    with platform.db.read() as session:
        file = sessions.get_files(session, sessions.find(session, scope.workspace, session_id), [body.path])[0]
    sessions.receive(platform, file)
    return ImportFile(path=file.path, size=file.size, sha256=file.sha256, state="uploaded")


@router.post(f"{PREFIX}/{{session_id}}/finalize")
async def finalize(session_id: str, platform: PlatformDep, scope: ScopeDep) -> ImportSession:
    """Create the run. A retry, after a lost answer, changes nothing."""
    return await run_in_turn("imports", f"runs of {scope.workspace.id}", _finalize, session_id, platform, scope)


def _finalize(session_id: str, platform: Platform, scope: Scope) -> ImportSession:
    with platform.db.read() as session:
        sessions.find(session, scope.workspace, session_id)
    finished_run.finalize(platform, session_id)
    with platform.db.read() as session:
        return sessions.body(session, platform.settings, session.get_one(tables.Import, session_id))
