"""`/api/workers/...`: what workers say. The bearer is a token with the scope `worker`, which opens nothing else.
`/api/cli/workers`: workers as people see and direct them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends

from osmosis.platform.services import fleet, worker_list
from osmosis.records.contract.body import Nothing
from osmosis.records.contract.worker_bodies import (
    JobStarted,
    WorkerHello,
    WorkerLeaves,
    WorkerList,
    WorkerOrders,
    WorkerRemoved,
    WorkerRound,
    WorkerWelcome,
)

from .contract_route import ContractRoute
from .deps import Caller, PersonDep, PlatformDep, caller_with, get_worker

router = APIRouter(prefix="/api/workers", route_class=ContractRoute)
people = APIRouter(prefix="/api/cli/workers", route_class=ContractRoute)

WorkerDep = Annotated[Caller, Depends(caller_with("worker"))]
AsksForWork = Annotated[Caller, Depends(get_worker)]


def _access(caller: Caller) -> fleet.WorkerAccess:
    return fleet.WorkerAccess(caller.token.id, caller.token.workspace_id)


@people.get("")
def list_workers(caller: PersonDep, platform: PlatformDep) -> WorkerList:
    with platform.db.read() as session:
        return WorkerList(workers=worker_list.rows(session, caller.user))


@people.post("/{name}/drain")
def drain(name: str, caller: PersonDep, platform: PlatformDep) -> Nothing:
    """It brings its jobs to their end and gets no more."""
    with platform.db.write() as session:
        worker_list.drain(session, caller, worker_list.to_direct(session, caller.user, name))
    return Nothing()


@people.delete("/{name}")
def remove(name: str, caller: PersonDep, platform: PlatformDep) -> WorkerRemoved:
    """It is not wanted any more; its jobs go elsewhere."""
    with platform.db.write() as session:
        worker = worker_list.to_direct(session, caller.user, name)
        return WorkerRemoved(released=worker_list.remove(platform, session, caller, worker))


@router.post("/hello")
def hello(body: WorkerHello, caller: AsksForWork, platform: PlatformDep) -> WorkerWelcome:
    return fleet.hello(platform, _access(caller), body)


@router.post("/claim")
def claim(body: WorkerRound, caller: AsksForWork, platform: PlatformDep) -> WorkerOrders:
    """One round: how its jobs are; the answer says which to end, and has at most one to start."""
    return fleet.round_of(platform, _access(caller), body)


@router.post("/started")
def started(body: JobStarted, caller: WorkerDep, platform: PlatformDep) -> Nothing:
    fleet.started(platform, _access(caller), body)
    return Nothing()


@router.post("/leave")
def leave(body: WorkerLeaves, caller: WorkerDep, platform: PlatformDep) -> Nothing:
    fleet.leave(platform, _access(caller), body)
    return Nothing()
