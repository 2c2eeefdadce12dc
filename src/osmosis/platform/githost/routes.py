"""The three requests a smart HTTP git client makes, for people who belong to the repository's workspace.

Reads who asks, finds the repository in the database, and hands over to `git http-backend`. A repository someone
may not see answers like one that does not exist.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import PlainTextResponse

from osmosis.base.git import sealed_environ
from osmosis.errors import AuthRequired, NotFound, OsmosisError
from osmosis.platform import Platform, tables
from osmosis.platform.gitsync import mirror, repositories, syncing
from osmosis.platform.security.origin import address_of
from osmosis.platform.services import audit, tokens, workspaces
from osmosis.platform.services.audit import Actor
from osmosis.platform.slow_work import apart, in_turn

from .address import RECEIVE, UPLOAD, GitAddress, Service, parse_address, parse_credential, parse_service
from .http_backend import BackendResponse, RequestLimits

log = logging.getLogger(__name__)
router = APIRouter(prefix="/git", include_in_schema=False)

MAX_PROCESSES = 16
"""git processes at once; further requests wait."""
SYNC_WAIT_S = 20.0
"""How long a push is held open for its sync; a longer one continues after the push has returned."""
_LIMITS = RequestLimits(body_bytes=mirror.MAX_PUSH_BYTES)


@dataclass(frozen=True, slots=True)
class _Visit:
    """Who asked for which repository, settled."""

    place: mirror.MirrorPlace
    who: Actor
    workspace: tables.Workspace
    name: str
    """`owner/repo`."""


@router.get("/{owner}/{name}/info/refs")
async def info_refs(owner: str, name: str, request: Request) -> Response:
    return await _serve(request, owner, name, "info/refs", discover=True)


@router.post("/{owner}/{name}/git-upload-pack")
async def upload_pack(owner: str, name: str, request: Request) -> Response:
    return await _serve(request, owner, name, UPLOAD)


@router.post("/{owner}/{name}/git-receive-pack")
async def receive_pack(owner: str, name: str, request: Request) -> Response:
    return await _serve(request, owner, name, RECEIVE)


async def _serve(request: Request, owner: str, name: str, tail: str, *, discover: bool = False) -> Response:
    platform: Platform = request.app.state.platform
    try:
        token = parse_credential(request.headers.get("authorization"))
        address = parse_address(owner, name)
        service = parse_service(request.query_params.get("service") if discover else tail)
        visit = await run_in_threadpool(_admit, platform, token, address, service, address_of(request))
        await apart("sync", mirror.prepare, visit.place, platform.settings)
    except OsmosisError as error:
        return _refusal(error)
    return BackendResponse(
        ["git", "http-backend"],
        _environ(platform, request, visit, tail),
        _slots(request),
        limits=_LIMITS,
        on_exit=_after_push(platform, visit) if tail == RECEIVE else None,
    )


def _admit(platform: Platform, token: str, address: GitAddress, service: Service, origin: str) -> _Visit:
    with platform.db.read() as session:
        row = tokens.authenticate(session, token)
        tokens.require_scope(row, "git")
        repository = repositories.find_internal(session, address.full_name)
        role = workspaces.role_of(session, row.user_id, repository.workspace_id) if repository is not None else None
        if repository is None or role is None:
            raise NotFound(
                f"no repository {address.full_name} for {row.user.handle}", hint="list yours: osmosis workspace list"
            )
        workspace = session.get_one(tables.Workspace, repository.workspace_id)
        tokens.require_workspace(row, workspace)
        workspaces.require(role, "push" if service == RECEIVE else "read")
        visit = _Visit(
            mirror.MirrorPlace.of(repository, platform.settings),
            Actor(row.user, row, origin),
            workspace,
            repository.full_name,
        )
    tokens.touch(platform.db, row)
    return visit


def _refusal(error: OsmosisError) -> Response:
    """Plain text, which git prints as `remote: ...`; 401 makes git ask its credential helper."""
    text = f"{error.message}; {error.hint}\n" if error.hint else f"{error.message}\n"
    headers = {"Cache-Control": "no-cache"}
    if isinstance(error, AuthRequired):
        headers["WWW-Authenticate"] = 'Basic realm="osmosis", charset="UTF-8"'
    return PlainTextResponse(text, status_code=error.http_status, headers=headers)


def _environ(platform: Platform, request: Request, visit: _Visit, tail: str) -> dict[str, str]:
    """The CGI environment. The path is made of the repository's own folder, never of the request's path."""
    headers = request.headers
    environ = sealed_environ(platform.settings.environ)
    environ.update(
        {
            "GATEWAY_INTERFACE": "CGI/1.1",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "GIT_PROJECT_ROOT": str(visit.place.path.parent),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": f"/{visit.place.path.name}/{tail}",
            "REQUEST_METHOD": request.method,
            "QUERY_STRING": "",
            "CONTENT_TYPE": headers.get("content-type", ""),
            "REMOTE_USER": visit.who.user.handle,
            "REMOTE_ADDR": request.client.host if request.client else "",
            "GIT_COMMITTER_NAME": visit.who.user.handle,
            "GIT_COMMITTER_EMAIL": f"{visit.who.user.handle}@localhost",
        }
    )
    if tail == "info/refs":
        service: Service = parse_service(request.query_params.get("service"))
        environ["QUERY_STRING"] = f"service={service}"
    if (length := headers.get("content-length", "")).isdigit() and "transfer-encoding" not in headers:
        environ["CONTENT_LENGTH"] = length
    if headers.get("content-encoding") in ("gzip", "x-gzip"):
        environ["HTTP_CONTENT_ENCODING"] = "gzip"
    if protocol := headers.get("git-protocol"):
        environ["GIT_PROTOCOL"] = protocol[:100]
    return environ


def _slots(request: Request) -> asyncio.Semaphore:
    """One semaphore per application, made in its event loop."""
    state = request.app.state
    if not hasattr(state, "git_slots"):
        state.git_slots = asyncio.Semaphore(MAX_PROCESSES)
    slots: asyncio.Semaphore = state.git_slots
    return slots


def _after_push(platform: Platform, visit: _Visit) -> Callable[[], Awaitable[None]]:
    """Git Sync of the pushed repository, finished before `git push` returns unless it takes long."""

    def note_and_sync() -> None:
        with audit.change(platform.db, visit.who, "git.push", visit.name, workspace=visit.workspace):
            pass
        syncing.after_push(platform.db, platform.settings, visit.place.id)

    async def wait_for_sync() -> None:
        job = asyncio.ensure_future(in_turn("sync", visit.place.id, note_and_sync))
        _running.add(job)
        job.add_done_callback(_finished)
        await asyncio.wait({job}, timeout=SYNC_WAIT_S)

    return wait_for_sync


_running: set[asyncio.Future[None]] = set()


def _finished(job: asyncio.Future[None]) -> None:
    _running.discard(job)
    if not job.cancelled() and (error := job.exception()) is not None:
        log.error("the sync after a push failed", exc_info=error)
