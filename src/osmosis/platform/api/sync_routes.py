"""`/api/cli/sync` and `/api/cli/rollouts`: Git Sync of the workspace's repository, and syncs by hand."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, BackgroundTasks, Query
from fastapi.concurrency import run_in_threadpool

from osmosis.platform import Platform, tables
from osmosis.platform.gitsync import repositories, synced, syncing
from osmosis.platform.slow_work import in_turn
from osmosis.records.contract.repository import SyncedRolloutPage, SyncReport, SyncStarted

from .contract_route import ContractRoute
from .deps import PlatformDep, Scope, ScopeDep, may

router = APIRouter(prefix="/api/cli", route_class=ContractRoute)


@router.get("/sync")
def show_sync(platform: PlatformDep, scope: ScopeDep) -> SyncReport:
    with platform.db.read() as session:
        repository = repositories.require(session, scope.workspace.id)
        return synced.state(session, platform.settings, repository)


@router.post("/sync", status_code=202)
async def start_sync(
    platform: PlatformDep, scope: Annotated[Scope, may("push")], background: BackgroundTasks, wait: bool = False
) -> SyncStarted:
    """Start a sync; with `?wait=true` the answer comes when it has finished."""
    event_id, repository_id = await run_in_threadpool(_request, platform, scope)
    if wait:
        await in_turn("sync", repository_id, syncing.run, platform.db, platform.settings, event_id)
    else:
        background.add_task(in_turn, "sync", repository_id, syncing.run, platform.db, platform.settings, event_id)
    return await run_in_threadpool(_started, platform, event_id)


def _request(platform: Platform, scope: Scope) -> tuple[str, str]:
    with platform.db.write() as session:
        event = syncing.request(session, repositories.require(session, scope.workspace.id))
        return event.id, event.repository_id


def _started(platform: Platform, event_id: str) -> SyncStarted:
    with platform.db.read() as session:
        return SyncStarted(event=synced.event_body(session.get_one(tables.SyncEvent, event_id)))


@router.get("/rollouts")
def list_rollouts(
    platform: PlatformDep,
    scope: ScopeDep,
    limit: Annotated[int, Query(ge=1, le=50)] = 50,
    offset: Annotated[int, Query(ge=0)] = 0,
    branch: str | None = None,
) -> SyncedRolloutPage:
    with platform.db.read() as session:
        repository = repositories.of_workspace(session, scope.workspace.id)
        found = synced.rollouts(session, repository, branch) if repository else []
        page = found[offset : offset + limit]
        more = offset + limit < len(found)
        return SyncedRolloutPage(
            rollouts=[synced.rollout_body(row, repository) for row in page if repository],
            total_count=len(found),
            has_more=more,
            next_offset=offset + limit if more else None,
        )
