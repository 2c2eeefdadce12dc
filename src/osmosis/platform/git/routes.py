"""Routes of Git Sync: syncs, the rollouts found, and webhooks by which a git host tells of a push. GitHub signs what it
sends (`X-Hub-Signature-256`, an HMAC-SHA256 of the body); GitLab sends the secret itself (`X-Gitlab-Token`). The secret
is derived from the repository's id with the platform's key, so none is stored. The message is not read: it means
"look", and a sync looks."""

import hashlib
import hmac
from typing import Annotated

from fastapi import APIRouter, BackgroundTasks, Request
from fastapi.concurrency import run_in_threadpool

from osmosis.errors import AuthRequired, NotFound
from osmosis.platform import Platform, tables
from osmosis.platform.auth.dependencies import PlatformDep, Scope, ScopeDep, may
from osmosis.platform.background import run_in_turn
from osmosis.platform.git import repositories, sync
from osmosis.platform.http.json_route import JsonRoute
from osmosis.platform.paging import PageDep
from osmosis.records.api.workspaces import SyncedRolloutPage, SyncReport, SyncStarted, WebhookAddress, WebhookTaken

router = APIRouter(route_class=JsonRoute)


@router.get("/api/cli/sync")
def show_sync(platform: PlatformDep, scope: ScopeDep) -> SyncReport:
    with platform.db.read() as session:
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
def list_rollouts(
    platform: PlatformDep, scope: ScopeDep, page: PageDep, branch: str | None = None
) -> SyncedRolloutPage:
    with platform.db.read() as session:
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
