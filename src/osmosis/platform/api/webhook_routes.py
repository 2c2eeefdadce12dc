"""`/hooks/{repository_id}`: a git host says that somebody pushed; `/api/cli/webhook` is what to tell it.

GitHub signs what it sends (`X-Hub-Signature-256`, an HMAC-SHA256 of the body); GitLab sends the secret itself
(`X-Gitlab-Token`). The secret is made of the repository's id with the platform's key, so none is stored. What is in the
message is not read: it means "look", and a sync looks.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Annotated

from fastapi import APIRouter, BackgroundTasks, Request
from fastapi.concurrency import run_in_threadpool

from osmosis.errors import AuthRequired, NotFound
from osmosis.platform import Platform, tables
from osmosis.platform.gitsync import repositories, syncing
from osmosis.platform.slow_work import in_turn
from osmosis.records.contract.repository import WebhookAddress, WebhookTaken

from .contract_route import ContractRoute
from .deps import PlatformDep, Scope, may

router = APIRouter(route_class=ContractRoute)


@router.get("/api/cli/webhook")
def show(platform: PlatformDep, scope: Annotated[Scope, may("repository")]) -> WebhookAddress:
    """The address and the secret to give to GitHub or GitLab. A repository that is connected anew has others."""
    with platform.db.read() as session:
        repository = repositories.require(session, scope.workspace.id)
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
        raise AuthRequired(
            "the signature of this webhook is missing or wrong", hint="copy the secret again: osmosis workspace webhook"
        )
    if not await run_in_threadpool(_is_external, platform, repository_id):
        raise NotFound("this repository is no longer connected", hint="osmosis workspace webhook")
    background.add_task(in_turn, "sync", repository_id, syncing.poll, platform.db, platform.settings, repository_id)
    return WebhookTaken(status="accepted")


def _is_external(platform: Platform, repository_id: str) -> bool:
    with platform.db.read() as session:
        repository = session.get(tables.Repository, repository_id)
        return repository is not None and repository.kind == "external"


def _secret(platform: Platform, repository_id: str) -> str:
    return platform.vault.sign(f"webhook|{repository_id}")


def _is_signed(request: Request, body: bytes, secret: str) -> bool:
    """By either way of signing; a request without one is refused."""
    signature = request.headers.get("x-hub-signature-256", "")
    if signature:
        expected = "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
        return hmac.compare_digest(expected.encode(), signature.encode(errors="replace"))
    return hmac.compare_digest(secret.encode(), request.headers.get("x-gitlab-token", "").encode(errors="replace"))
