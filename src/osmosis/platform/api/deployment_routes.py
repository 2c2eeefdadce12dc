"""`/api/cli/models/{name}/deploy`, `undeploy`, `merge`, `logs`, and `/api/cli/deployments`, which lists what is served.

Generation 0.2 deploys below `/api/cli/deployments` and reads answers wrapped as `{"deployment": ...}`.
"""

from __future__ import annotations

from fastapi import APIRouter

from osmosis.errors import NotFound
from osmosis.platform import tables
from osmosis.platform.services import audit, deployments, merging
from osmosis.platform.services.paging import LogSlice, PageRange
from osmosis.records.contract.body import LogPage
from osmosis.records.contract.model_bodies import MergeRequest, ModelMerge
from osmosis.records.contract.training_bodies import DeploymentPage, ModelDeployment, WrappedDeployment

from .contract_route import ContractRoute
from .deps import PlatformDep, ScopeDep

router = APIRouter(prefix="/api/cli", route_class=ContractRoute)


@router.post("/models/{name}/deploy")
def deploy(name: str, platform: PlatformDep, scope: ScopeDep) -> ModelDeployment:
    with platform.db.write() as session:
        run = deployments.deploy(session, platform, scope.workspace, scope.user, name)
        audit.note(session, scope, "model.deploy", name, workspace=scope.workspace)
        return deployments.body(session, run)


@router.post("/models/{name}/undeploy")
def undeploy(name: str, platform: PlatformDep, scope: ScopeDep) -> ModelDeployment:
    with platform.db.write() as session:
        run = deployments.undeploy(session, scope.workspace, name)
        audit.note(session, scope, "model.undeploy", name, workspace=scope.workspace)
        return deployments.body(session, run)


@router.post("/models/{name}/merge")
def merge(name: str, body: MergeRequest, platform: PlatformDep, scope: ScopeDep) -> ModelMerge:
    with platform.db.write() as session:
        run = merging.start(session, platform, scope.workspace, scope.user, name, body)
        audit.note(session, scope, "model.merge", name, workspace=scope.workspace)
        return merging.body(run)


@router.get("/models/{name}/merge")
def merged(name: str, platform: PlatformDep, scope: ScopeDep) -> ModelMerge:
    """How far the merge is that makes the model of this name."""
    with platform.db.read() as session:
        return merging.body(merging.find(session, scope.workspace.id, name))


@router.get("/models/{name}/logs")
def logs(
    name: str,
    platform: PlatformDep,
    scope: ScopeDep,
    limit: int = 50,
    direction: str = "older",
    cursor: str | None = None,
) -> LogPage:
    """The log of a model's deployment."""
    page = LogSlice(limit, direction, cursor)
    with platform.db.read() as session:
        run = deployments.of_model(session, scope.workspace.id, name)
        if run is None:
            raise NotFound(f"model {name!r} was never deployed", hint=f"osmosis model deploy {name}")
        return page.fetch(session, tables.RunLog, tables.RunLog.run_id == run.id)


@router.get("/deployments")
def listed(platform: PlatformDep, scope: ScopeDep, limit: int = 50, offset: int = 0) -> DeploymentPage:
    page = PageRange(limit, offset)
    with platform.db.read() as session:
        found, total = page.fetch(session, deployments.of_workspaces(scope.workspace.id))
        shown = [deployments.body(session, run) for run in found]
        room = deployments.room(session, platform.settings)
    return DeploymentPage(deployments=shown, **room, **page.place(len(shown), total))


@router.get("/deployments/{name}")
def one(name: str, platform: PlatformDep, scope: ScopeDep) -> WrappedDeployment:
    with platform.db.read() as session:
        run = deployments.of_model(session, scope.workspace.id, name)
        if run is None:
            raise NotFound(f"model {name!r} was never deployed", hint=f"osmosis model deploy {name}")
        return WrappedDeployment(deployment=deployments.body(session, run))


@router.post("/deployments/{name}/deploy")
def deploy_wrapped(name: str, platform: PlatformDep, scope: ScopeDep) -> WrappedDeployment:
    return WrappedDeployment(deployment=deploy(name, platform, scope))


@router.post("/deployments/{name}/undeploy")
def undeploy_wrapped(name: str, platform: PlatformDep, scope: ScopeDep) -> WrappedDeployment:
    return WrappedDeployment(deployment=undeploy(name, platform, scope))
