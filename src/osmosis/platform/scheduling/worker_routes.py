from typing import Annotated

from fastapi import APIRouter, Depends

from osmosis.platform import Platform
from osmosis.platform.auth import tokens
from osmosis.platform.auth.dependencies import Caller, PersonDep, PlatformDep, caller_with
from osmosis.platform.http.json_route import JsonRoute
from osmosis.platform.scheduling import worker_admin
from osmosis.platform.scheduling.workers import WorkerDesk
from osmosis.records.api import workers as worker_api
from osmosis.records.api.body import Nothing

router = APIRouter(prefix="/api/workers", route_class=JsonRoute)
people = APIRouter(prefix="/api/cli/workers", route_class=JsonRoute)

WorkerDep = Annotated[Caller, Depends(caller_with("worker"))]
AsksForWork = Annotated[Caller, Depends(caller_with("worker", tokens.require_worker))]


def _desk(platform: Platform, caller: Caller) -> WorkerDesk:
    return WorkerDesk(platform, caller.token.id, caller.token.workspace_id)


@people.get("")
def list_workers(caller: PersonDep, platform: PlatformDep) -> worker_api.WorkerList:
    with platform.db.read() as session:
        return worker_api.WorkerList(workers=worker_admin.list_rows(session, caller.user))


@people.post("/{name}/drain")
def drain(name: str, caller: PersonDep, platform: PlatformDep) -> Nothing:
    with platform.db.write() as session:
        worker_admin.drain(session, caller, worker_admin.require_managed(session, caller.user, name))
    return Nothing()


@people.delete("/{name}")
def remove(name: str, caller: PersonDep, platform: PlatformDep) -> worker_api.WorkerRemoved:
    with platform.db.write() as session:
        worker = worker_admin.require_managed(session, caller.user, name)
        return worker_api.WorkerRemoved(released=worker_admin.remove(platform, session, caller, worker))


@router.post("/hello")
def hello(body: worker_api.WorkerHello, caller: AsksForWork, platform: PlatformDep) -> worker_api.WorkerWelcome:
    return _desk(platform, caller).hello(body)


@router.post("/claim")
def claim(body: worker_api.WorkerRound, caller: AsksForWork, platform: PlatformDep) -> worker_api.WorkerOrders:
    """One round: how the worker's jobs are; the answer says which to end, and has at most one to start."""
    return _desk(platform, caller).round(body)


@router.post("/started")
def started(body: worker_api.JobStarted, caller: WorkerDep, platform: PlatformDep) -> Nothing:
    _desk(platform, caller).started(body)
    return Nothing()


@router.post("/leave")
def leave(body: worker_api.WorkerLeaves, caller: WorkerDep, platform: PlatformDep) -> Nothing:
    _desk(platform, caller).leave(body)
    return Nothing()
