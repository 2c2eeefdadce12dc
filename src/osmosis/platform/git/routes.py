"""Routes of Git Sync and of webhooks, which mean "look": GitHub signs them (`X-Hub-Signature-256`), GitLab sends the
secret (`X-Gitlab-Token`), which is derived from the repository's id with the platform's key."""

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import APIRouter, BackgroundTasks, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import PlainTextResponse

from osmosis.base.git import sealed_environ
from osmosis.errors import AuthRequired, Forbidden, NotFound, OsmosisError
from osmosis.platform import Platform, tables
from osmosis.platform.auth import tokens
from osmosis.platform.auth.dependencies import PlatformDep, Scope, ScopeDep, may
from osmosis.platform.auth.rate_limits import address_of
from osmosis.platform.background import run_apart, run_in_turn
from osmosis.platform.git import mirror, repositories, sync
from osmosis.platform.git.git_http_backend import BackendResponse, RequestLimits
from osmosis.platform.http import JsonRoute, Reading
from osmosis.platform.paging import PageDep
from osmosis.platform.workspaces import audit, service as workspaces
from osmosis.records.api.workspaces import SyncedRolloutPage, SyncReport, SyncStarted, WebhookAddress, WebhookTaken

router = APIRouter(route_class=JsonRoute)


@router.get("/api/cli/sync")
def show_sync(platform: PlatformDep, session: Reading, scope: ScopeDep) -> SyncReport:
    repository = repositories.get_for_workspace(session, scope.workspace.id)
    return sync.build_report(session, platform.settings, repository)


@router.post("/api/cli/sync", status_code=202)
async def start_sync(
    platform: PlatformDep, scope: Annotated[Scope, may("push")], background: BackgroundTasks, wait: bool = False
) -> SyncStarted:
    event_id, repository_id = await run_in_threadpool(_request, platform, scope)
    if wait:
        await run_in_turn("sync", repository_id, sync.run, platform.db, platform.settings, event_id)
    else:
        background.add_task(run_in_turn, "sync", repository_id, sync.run, platform.db, platform.settings, event_id)
    return await run_in_threadpool(_started, platform, event_id)


def _request(platform: Platform, scope: Scope) -> tuple[str, str]:
    with platform.db.write() as session:
        event = sync.add_event(session, repositories.get_for_workspace(session, scope.workspace.id))
        return event.id, event.repository_id


def _started(platform: Platform, event_id: str) -> SyncStarted:
    with platform.db.read() as session:
        return SyncStarted(event=sync.to_sync_event(session.get_one(tables.SyncEvent, event_id)))


@router.get("/api/cli/rollouts")
def list_rollouts(session: Reading, scope: ScopeDep, page: PageDep, branch: str | None = None) -> SyncedRolloutPage:
    repository = repositories.find_for_workspace(session, scope.workspace.id)
    rows = sync.list_rollouts(session, repository, branch) if repository else []
    listed = rows[page.offset : page.offset + page.limit]
    rollouts = [sync.to_synced_rollout(row, repository) for row in listed if repository]
    return SyncedRolloutPage(rollouts=rollouts, **page.place(len(listed), len(rows)))


@router.get("/api/cli/webhook")
def show_webhook(platform: PlatformDep, scope: Annotated[Scope, may("repository")]) -> WebhookAddress:
    """Return the address and the secret for GitHub or GitLab; connecting a repository anew changes them."""
    with platform.db.read() as session:
        repository = repositories.get_for_workspace(session, scope.workspace.id)
    if repository.kind != "external":
        raise NotFound("this repository is hosted here: a push is seen at once", hint="nothing needs to be done")
    url = f"{platform.settings.url}/hooks/{repository.id}"
    return WebhookAddress(url=url, secret=_secret(platform, repository.id), content_type="application/json")


@router.post("/hooks/{repository_id}", status_code=202)
async def pushed(
    repository_id: str, request: Request, platform: PlatformDep, background: BackgroundTasks
) -> WebhookTaken:
    body = await request.body()
    if not _is_signed(request, body, _secret(platform, repository_id)):
        message = "the signature of this webhook is missing or wrong"
        raise AuthRequired(message, hint="copy the secret again: osmosis workspace show --webhook")
    if not await run_in_threadpool(_is_external, platform, repository_id):
        raise NotFound("this repository is no longer connected", hint="osmosis workspace show --webhook")
    if repository_id not in _unseen:
        _unseen.add(repository_id)
        background.add_task(run_in_turn, "sync", repository_id, _look, platform, repository_id)
    return WebhookTaken(status="accepted")


_unseen: set[str] = set()
"""Repositories that a webhook named and whose look has not begun: however often it is sent, one look is waiting."""


def _look(platform: Platform, repository_id: str) -> None:
    _unseen.discard(repository_id)  # what is pushed from now on needs another look
    sync.poll(platform.db, platform.settings, repository_id)


def _is_external(platform: Platform, repository_id: str) -> bool:
    with platform.db.read() as session:
        repository = session.get(tables.Repository, repository_id)
        return repository is not None and repository.kind == "external"


def _secret(platform: Platform, repository_id: str) -> str:
    return platform.vault.sign(f"webhook|{repository_id}")


def _is_signed(request: Request, body: bytes, secret: str) -> bool:
    signature = request.headers.get("x-hub-signature-256", "")
    if signature:
        expected = "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
        return hmac.compare_digest(expected.encode(), signature.encode(errors="replace"))
    return hmac.compare_digest(secret.encode(), request.headers.get("x-gitlab-token", "").encode(errors="replace"))


log = logging.getLogger(__name__)
host_router = APIRouter(prefix="/git", include_in_schema=False)

MAX_PROCESSES = 16
SYNC_WAIT_S = 20.0  # Seconds that a push waits for its sync; a longer sync continues after the push has returned
_LIMITS = RequestLimits(body_bytes=mirror.MAX_PUSH_BYTES)


@dataclass(frozen=True, slots=True)
class _Visit:
    place: mirror.RepositoryFolder
    who: audit.Actor
    workspace: tables.Workspace
    name: str


@host_router.get("/{owner}/{name}/info/refs")
async def info_refs(owner: str, name: str, request: Request) -> Response:
    return await _serve(request, owner, name, "info/refs", discover=True)


@host_router.post("/{owner}/{name}/git-upload-pack")
async def upload_pack(owner: str, name: str, request: Request) -> Response:
    return await _serve(request, owner, name, UPLOAD)


@host_router.post("/{owner}/{name}/git-receive-pack")
async def receive_pack(owner: str, name: str, request: Request) -> Response:
    return await _serve(request, owner, name, RECEIVE)


async def _serve(request: Request, owner: str, name: str, tail: str, *, discover: bool = False) -> Response:
    platform: Platform = request.app.state.platform
    try:
        token = parse_credential(request.headers.get("authorization"))
        full_name = parse_address(owner, name)
        service = parse_service(request.query_params.get("service") if discover else tail)
        visit = await run_in_threadpool(_admit, platform, token, full_name, service, address_of(request))
        await run_apart("sync", mirror.prepare, visit.place, platform.settings)
    except OsmosisError as error:
        # Git prints plain text as `remote: ...`; 401 makes it ask its credential helper.
        text = f"{error.message}; {error.hint}\n" if error.hint else f"{error.message}\n"
        headers = {"Cache-Control": "no-cache"}
        if isinstance(error, AuthRequired):
            headers["WWW-Authenticate"] = 'Basic realm="osmosis", charset="UTF-8"'
        return PlainTextResponse(text, status_code=error.http_status, headers=headers)
    state = request.app.state
    if not hasattr(state, "git_slots"):
        state.git_slots = asyncio.Semaphore(MAX_PROCESSES)
    command, environ = ["git", "http-backend"], _environ(platform, request, visit, tail)
    on_exit = _after_push(platform, visit) if tail == RECEIVE else None
    return BackendResponse(command, environ, state.git_slots, limits=_LIMITS, on_exit=on_exit)


def _admit(platform: Platform, token: str, full_name: str, service: "Service", origin: str) -> _Visit:
    with platform.db.read() as session:
        row = tokens.authenticate(session, token)
        tokens.require_scope(row, "git")
        repository = repositories.find_internal(session, full_name)
        role = workspaces.role_of(session, row.user_id, repository.workspace_id) if repository is not None else None
        if repository is None or role is None:
            message = f"no repository {full_name} for {row.user.handle}"
            raise NotFound(message, hint="list yours: osmosis workspace list")
        workspace = session.get_one(tables.Workspace, repository.workspace_id)
        tokens.require_workspace(row, workspace)
        workspaces.require(role, "push" if service == RECEIVE else "read")
        folder = mirror.RepositoryFolder.of(repository, platform.settings)
        visit = _Visit(folder, audit.Actor(row.user, row, origin), workspace, repository.full_name)
    tokens.touch(platform.db, row)
    return visit


def _environ(platform: Platform, request: Request, visit: _Visit, tail: str) -> dict[str, str]:
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


def _after_push(platform: Platform, visit: _Visit) -> Callable[[], Awaitable[None]]:
    def note_and_sync() -> None:
        with platform.db.write() as session:
            audit.note(session, visit.who, "git.push", visit.name, workspace=visit.workspace)
        sync.poll(platform.db, platform.settings, visit.place.id, kind="internal")

    async def wait_for_sync() -> None:
        # A task of its own: the refs are already moved, so the sync must happen also when the client is gone.
        job = asyncio.ensure_future(run_in_turn("sync", visit.place.id, note_and_sync))
        _running.add(job)
        job.add_done_callback(_finished)
        await asyncio.wait({job}, timeout=SYNC_WAIT_S)

    return wait_for_sync


_running: set[asyncio.Future[None]] = set()


def _finished(job: asyncio.Future[None]) -> None:
    _running.discard(job)
    if not job.cancelled() and (error := job.exception()) is not None:
        log.error("the sync after a push failed", exc_info=error)


Service = Literal["git-upload-pack", "git-receive-pack"]

UPLOAD: Service = "git-upload-pack"
RECEIVE: Service = "git-receive-pack"
_SEGMENT = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}\Z")


def parse_address(owner: str, name: str) -> str:
    short = name[:-4] if name.endswith(".git") else name
    if not _SEGMENT.fullmatch(owner) or not _SEGMENT.fullmatch(short):
        raise NotFound("no such repository", hint="the path must be /git/<owner>/<repository>.git")
    return f"{owner}/{short}".lower()


def parse_service(value: str | None) -> Service:
    """Return the `service` of `info/refs`; Forbidden without one: the dumb protocol would serve files."""
    if value == UPLOAD:
        return UPLOAD
    if value == RECEIVE:
        return RECEIVE
    message = "only git-upload-pack and git-receive-pack are served here"
    raise Forbidden(message, hint="use a git client that speaks smart HTTP (git 1.6.6 or newer)")


def parse_credential(header: str | None) -> str:
    """Return the token of `Authorization`: Bearer, or Basic with it as password, or as user name alone."""
    if not header:
        raise AuthRequired("this repository requires a login", hint="run `osmosis login`, then push again")
    scheme, _, rest = header.strip().partition(" ")
    rest = rest.strip()
    token = ""
    if scheme.lower() == "bearer":
        token = rest
    elif scheme.lower() == "basic":
        with suppress(binascii.Error, UnicodeDecodeError):
            user, _, password = base64.b64decode(rest, validate=True).decode().partition(":")
            token = password or user
    if not token:
        message = "the Authorization header has no token"
        raise AuthRequired(message, hint="use Basic authentication with the token as the password")
    return token
