"""`/api/cli/rollout-server`: registration by `osmosis serve`; `/api/cli/rollout-servers` lists them, without keys.

A client of generation 0.2 sends only its bearer token: then a server is its owner's alone. The check of a server
happens between two sessions, never in one.
"""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.concurrency import run_in_threadpool

from osmosis.platform import Platform, tables
from osmosis.platform.services import datasets, rollout_servers, server_probe
from osmosis.platform.services.paging import PageRange
from osmosis.records.contract.server_registry import NewServer, RegisteredServer, ServerPage, ServerStatus

from .contract_route import ContractRoute
from .deps import CallerDep, EitherDep, PlatformDep

router = APIRouter(prefix="/api/cli", route_class=ContractRoute)


@router.post("/rollout-server/register")
async def register(body: NewServer, platform: PlatformDep, found: EitherDep) -> RegisteredServer:
    caller, scope = found
    rollout_servers.check_name(body.agent_loop_name)
    target = server_probe.ProbeTarget(body.host, body.port, body.api_key or None)
    health = await server_probe.check(target, private=server_probe.takes_private(platform.settings))
    who = rollout_servers.Registrant(caller.user.id, scope.workspace.id if scope else None)

    def note() -> str:
        with platform.db.write() as session:
            vault = platform.vault
            return rollout_servers.register(session, vault, who, body.agent_loop_name, target, health).id

    result = {"server_info": health.info} if health.error is None else {"error": health.error}
    return RegisteredServer(id=await run_in_threadpool(note), status=health.status, health_check_result=result)


@router.post("/rollout-server/{server_id}/heartbeat")
async def heartbeat(server_id: str, platform: PlatformDep, caller: CallerDep) -> ServerStatus:
    """Heartbeat. A server that was not healthy is probed again."""

    def note() -> tables.RolloutServer:
        with platform.db.write() as session:
            return rollout_servers.heartbeat(session, caller.user, server_id)

    row = await run_in_threadpool(note)
    status = row.status if row.status == "healthy" else await _look_again(platform, row)
    return ServerStatus(id=row.id, status=status)


async def _look_again(platform: Platform, row: tables.RolloutServer) -> str:
    target = rollout_servers.target_of(platform.vault, row)
    health = await server_probe.check(target, private=server_probe.takes_private(platform.settings))

    def note() -> None:
        with platform.db.write() as session:
            rollout_servers.note_health(session, row.id, health)

    await run_in_threadpool(note)
    return health.status


@router.delete("/rollout-server/{server_id}", status_code=204)
def remove(server_id: str, platform: PlatformDep, caller: CallerDep) -> Response:
    with platform.db.write() as session:
        rollout_servers.remove(session, caller.user, server_id)
    return Response(status_code=204)


@router.get("/rollout-servers")
def list_servers(platform: PlatformDep, found: EitherDep, limit: int = 50, offset: int = 0) -> ServerPage:
    caller, scope = found
    page = PageRange(limit, offset)
    with platform.db.read() as session:
        rows, total = page.fetch(session, rollout_servers.visible(caller.user, scope.workspace if scope else None))
        owners = datasets.creator_names(session, {row.owner_id for row in rows})
    shown = [rollout_servers.body(row, owners.get(row.owner_id)) for row in rows]
    return ServerPage(rollout_servers=shown, **page.place(len(shown), total))
