"""Routes of rollout servers, probed between two sessions; a client of generation 0.2 names no workspace."""

from fastapi import APIRouter, Response
from fastapi.concurrency import run_in_threadpool

from osmosis.platform import Platform, tables
from osmosis.platform.auth.dependencies import CallerDep, EitherDep, PlatformDep
from osmosis.platform.http.json_route import JsonRoute
from osmosis.platform.paging import PageDep
from osmosis.platform.rollout_servers import service as rollout_servers
from osmosis.records.api.workers import NewServer, RegisteredServer, ServerPage, ServerStatus

router = APIRouter(prefix="/api/cli", route_class=JsonRoute)


@router.post("/rollout-server/register")
async def register(body: NewServer, platform: PlatformDep, found: EitherDep) -> RegisteredServer:
    caller, scope = found
    rollout_servers.check_name(body.agent_loop_name)
    target = rollout_servers.ProbeTarget(body.host, body.port, body.api_key or None)
    health = await rollout_servers.check(target, private=rollout_servers.takes_private(platform.settings))
    workspace_id, name = scope.workspace.id if scope else None, body.agent_loop_name

    def note() -> str:
        with platform.db.write() as session:
            vault = platform.vault
            return rollout_servers.register(session, vault, caller.user, workspace_id, name, target, health).id

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
    health = await rollout_servers.check(target, private=rollout_servers.takes_private(platform.settings))

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
def list_servers(platform: PlatformDep, found: EitherDep, page: PageDep) -> ServerPage:
    caller, scope = found
    with platform.db.read() as session:
        query = rollout_servers.select_servers(caller.user, scope.workspace if scope else None)
        rows, total = page.fetch(session, query)
        bodies = [rollout_servers.build_server(row) for row in rows]
    return ServerPage(rollout_servers=bodies, **page.place(len(bodies), total))
