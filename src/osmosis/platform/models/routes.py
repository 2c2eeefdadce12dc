"""Routes of models: base models, checkpoints, deployments, merges. Generation 0.2 deploys below `/api/cli/deployments`
and reads answers wrapped as `{"deployment": ...}`. Routes of files come first: a model's name may hold slashes."""

import sqlalchemy as sa
from fastapi import APIRouter, Response
from sqlalchemy.orm import Session

from osmosis.errors import NotFound, NotOffered
from osmosis.platform import tables
from osmosis.platform.auth.dependencies import PlatformDep, Scope, ScopeDep
from osmosis.platform.background import slow
from osmosis.platform.http.json_route import JsonRoute
from osmosis.platform.models import deployments, merging, service as models
from osmosis.platform.paging import LogSliceDep, PageDep
from osmosis.platform.workspaces import audit
from osmosis.records.api.body import LogPage
from osmosis.records.api.models import MergeRequest, ModelMerge
from osmosis.records.api.training import DeploymentPage, ModelDeployment, ModelPage, ModelRow, WrappedDeployment

router = APIRouter(prefix="/api/cli", route_class=JsonRoute)


@router.post("/models/{name}/deploy")
def deploy(name: str, platform: PlatformDep, scope: ScopeDep) -> ModelDeployment:
    with platform.db.write() as session:
        run = deployments.deploy(session, platform, scope.workspace, scope.user, name)
        audit.note(session, scope, "model.deploy", name, workspace=scope.workspace)
        return deployments.build_deployment(session, run)


@router.post("/models/{name}/undeploy")
def undeploy(name: str, platform: PlatformDep, scope: ScopeDep) -> ModelDeployment:
    with platform.db.write() as session:
        run = deployments.undeploy(session, scope.workspace, name)
        audit.note(session, scope, "model.undeploy", name, workspace=scope.workspace)
        return deployments.build_deployment(session, run)


@router.post("/models/{name}/merge")
def merge(name: str, body: MergeRequest, platform: PlatformDep, scope: ScopeDep) -> ModelMerge:
    with platform.db.write() as session:
        run = merging.start(session, platform, scope.workspace, scope.user, name, body)
        audit.note(session, scope, "model.merge", name, workspace=scope.workspace)
        return merging.build_merge(run)


@router.get("/models/{name}/merge")
def merged(name: str, platform: PlatformDep, scope: ScopeDep) -> ModelMerge:
    with platform.db.read() as session:
        return merging.build_merge(merging.find(session, scope.workspace.id, name))


@router.get("/models/{name}/logs")
def logs(name: str, platform: PlatformDep, scope: ScopeDep, page: LogSliceDep) -> LogPage:
    with platform.db.read() as session:
        deployment = _get_deployment(session, scope, name)
        return page.fetch(session, tables.RunLog, tables.RunLog.deployment_id == deployment.id)


@router.get("/deployments")
def listed(platform: PlatformDep, scope: ScopeDep, page: PageDep) -> DeploymentPage:
    with platform.db.read() as session:
        rows, total = page.fetch(session, deployments.select_deployments(scope.workspace.id))
        bodies = [deployments.build_deployment(session, run) for run in rows]
        room = deployments.room(session, platform.settings)
    return DeploymentPage(deployments=bodies, **room, **page.place(len(bodies), total))


@router.get("/deployments/{name}")
def one(name: str, platform: PlatformDep, scope: ScopeDep) -> WrappedDeployment:
    with platform.db.read() as session:
        deployment = _get_deployment(session, scope, name)
        return WrappedDeployment(deployment=deployments.build_deployment(session, deployment))


def _get_deployment(session: Session, scope: Scope, name: str) -> tables.Deployment:
    deployment = deployments.find_by_model(session, scope.workspace.id, name)
    if deployment is None:
        raise NotFound(f"model {name!r} was never deployed", hint=f"osmosis model deploy {name}")
    return deployment


@router.post("/deployments/{name}/deploy")
def deploy_wrapped(name: str, platform: PlatformDep, scope: ScopeDep) -> WrappedDeployment:
    return WrappedDeployment(deployment=deploy(name, platform, scope))


@router.post("/deployments/{name}/undeploy")
def undeploy_wrapped(name: str, platform: PlatformDep, scope: ScopeDep) -> WrappedDeployment:
    return WrappedDeployment(deployment=undeploy(name, platform, scope))


@router.get("/models/base")
def base_models(platform: PlatformDep, scope: ScopeDep, page: PageDep) -> ModelPage:
    query = sa.select(tables.BaseModel).where(tables.BaseModel.workspace_id == scope.workspace.id)
    with platform.db.read() as session:
        rows, total = page.fetch(session, query.order_by(tables.BaseModel.created_at.desc()))
        bodies = deployments.add_deployments(session, platform.settings, scope.workspace.id, map(models.base_row, rows))
    return ModelPage(models=bodies, **page.place(len(bodies), total))


@router.get("/models/base/{name:path}")
def base_model(name: str, platform: PlatformDep, scope: ScopeDep) -> ModelRow:
    with platform.db.read() as session:
        row = models.base_row(models.find_base(session, scope.workspace, name))
        return deployments.add_deployments(session, platform.settings, scope.workspace.id, [row])[0]


@router.delete("/models/base/{name}", status_code=204)
@slow("objects")
def delete_base(name: str, platform: PlatformDep, scope: ScopeDep) -> Response:
    with platform.db.write() as session:
        model = models.find_base(session, scope.workspace, name)
        models.refuse_in_use(session, model.workspace_id, model.name)
        session.delete(model)
        session.execute(sa.delete(tables.Merge).filter_by(id=model.id))
        audit.note(session, scope, "model.delete", model.name, workspace=scope.workspace)
    models.delete_files(platform, models.key_of(model.id), models.uploads_key(model.id))
    platform.objects.delete(f"runs/{model.id}/")  # of the merge that it came of
    return Response(status_code=204)


@router.get("/models/lora")
def lora_models(platform: PlatformDep, scope: ScopeDep, page: PageDep) -> ModelPage:
    query = models.select_trained(scope.workspace.id).order_by(tables.Checkpoint.created_at.desc())
    with platform.db.read() as session:
        rows, total = page.fetch(session, query)
        bare = [models.trained_row(row, session.get_one(tables.Run, row.run_id)) for row in rows]
        bodies = deployments.add_deployments(session, platform.settings, scope.workspace.id, bare)
        room = deployments.room(session, platform.settings)
    return ModelPage(models=bodies, **room, **page.place(len(bodies), total))


@router.get("/models/{name}")
def lora_model(name: str, platform: PlatformDep, scope: ScopeDep) -> ModelRow:
    with platform.db.read() as session:
        row = models.find_trained(session, scope.workspace.id, name)
        bare = models.trained_row(row, session.get_one(tables.Run, row.run_id))
        return deployments.add_deployments(session, platform.settings, scope.workspace.id, [bare])[0]


@router.delete("/models/{name}", status_code=204)
@slow("objects")
def delete_lora(name: str, platform: PlatformDep, scope: ScopeDep) -> Response:
    with platform.db.write() as session:
        row = models.find_trained(session, scope.workspace.id, name)
        models.delete_trained(session, row)
        audit.note(session, scope, "model.delete", row.name, workspace=scope.workspace)
    models.delete_files(platform, row.path)
    return Response(status_code=204)


# What clients know and this platform does not offer: a 404 would read like a wrong address.
not_offered = APIRouter(prefix="/api/cli", route_class=JsonRoute, include_in_schema=False)
METHODS = ["GET", "POST", "DELETE"]


def refuse_dev_server(scope: ScopeDep) -> None:
    message = "this platform does not offer development servers"
    raise NotOffered(message, hint="run the rollout here: osmosis eval run CONFIG, or serve it: osmosis serve")


for path in ("/dev-rollout-server", "/dev-rollout-server/{name:path}"):
    not_offered.add_api_route(path, refuse_dev_server, methods=METHODS)
