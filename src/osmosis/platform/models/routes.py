"""Routes of models. Those of files come first: a model's name may hold slashes. Calls of deployed ones, in four
dialects, are streamed, so that no thread waits and who hangs up ends the call."""

import asyncio
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Annotated
from urllib.parse import quote

import orjson
import sqlalchemy as sa
from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse
from sqlalchemy.orm import Session

from osmosis.base import model_folder
from osmosis.dialects import CHAT, RESPONSES, EndpointError, dialect_of_path
from osmosis.dialects.call import OVERLOADED
from osmosis.errors import Conflict, NotFound, NotOffered, OsmosisError, ValidationError
from osmosis.platform import Platform, tables
from osmosis.platform.auth.dependencies import GIT_HEADER, WORKSPACE_HEADER, PlatformDep, Scope, ScopeDep, may
from osmosis.platform.background import run_apart, slow
from osmosis.platform.datasets.production import recorded
from osmosis.platform.http import JsonRoute, Reading, Writing
from osmosis.platform.models import deployments, inference, merging, service as models
from osmosis.platform.models.inference import InferenceProxy, error_body
from osmosis.platform.objects.parts import SIGNED, Parts, object_url, receive_part, store_joined
from osmosis.platform.paging import LogSliceDep, PageDep
from osmosis.platform.workspaces import audit
from osmosis.records.api import training as training_api
from osmosis.records.api.body import LogPage

router = APIRouter(prefix="/api/cli", route_class=JsonRoute)


@router.post("/models/{name}/deploy")
def deploy(name: str, platform: PlatformDep, session: Writing, scope: ScopeDep) -> training_api.ModelDeployment:
    run = deployments.deploy(session, platform, scope.workspace, scope.user, name)
    audit.note(session, scope, "model.deploy", name, workspace=scope.workspace)
    return deployments.build_deployment(session, run)


@router.post("/models/{name}/undeploy")
def undeploy(name: str, session: Writing, scope: ScopeDep) -> training_api.ModelDeployment:
    run = deployments.undeploy(session, scope.workspace, name)
    audit.note(session, scope, "model.undeploy", name, workspace=scope.workspace)
    return deployments.build_deployment(session, run)


@router.post("/models/{name}/merge")
def merge(
    name: str, body: training_api.MergeRequest, platform: PlatformDep, session: Writing, scope: ScopeDep
) -> training_api.ModelMerge:
    run = merging.start(session, platform, scope.workspace, scope.user, name, body)
    audit.note(session, scope, "model.merge", name, workspace=scope.workspace)
    return merging.build_merge(run)


@router.get("/models/{name}/merge")
def merged(name: str, session: Reading, scope: ScopeDep) -> training_api.ModelMerge:
    return merging.build_merge(merging.find(session, scope.workspace.id, name))


@router.get("/models/{name}/logs")
def logs(name: str, session: Reading, scope: ScopeDep, page: LogSliceDep) -> LogPage:
    deployment = _get_deployment(session, scope, name)
    return page.fetch(session, tables.RunLog, tables.RunLog.deployment_id == deployment.id)


@router.get("/deployments")
def listed(platform: PlatformDep, session: Reading, scope: ScopeDep, page: PageDep) -> training_api.DeploymentPage:
    rows, total = page.fetch(session, deployments.select_deployments(scope.workspace.id))
    bodies = [deployments.build_deployment(session, run) for run in rows]
    room = deployments.room(session, platform.settings)
    return training_api.DeploymentPage(deployments=bodies, **room, **page.place(len(bodies), total))


@router.get("/deployments/{name}")
def one(name: str, session: Reading, scope: ScopeDep) -> training_api.WrappedDeployment:
    deployment = _get_deployment(session, scope, name)
    return training_api.WrappedDeployment(deployment=deployments.build_deployment(session, deployment))


def _get_deployment(session: Session, scope: Scope, name: str) -> tables.Deployment:
    deployment = deployments.find_by_model(session, scope.workspace.id, name)
    if deployment is None:
        raise NotFound(f"model {name!r} was never deployed", hint=f"osmosis model deploy {name}")
    return deployment


@router.post("/deployments/{name}/deploy")
def deploy_wrapped(
    name: str, platform: PlatformDep, session: Writing, scope: ScopeDep
) -> training_api.WrappedDeployment:
    return training_api.WrappedDeployment(deployment=deploy(name, platform, session, scope))


@router.post("/deployments/{name}/undeploy")
def undeploy_wrapped(name: str, session: Writing, scope: ScopeDep) -> training_api.WrappedDeployment:
    return training_api.WrappedDeployment(deployment=undeploy(name, session, scope))


@router.get("/models/base")
def base_models(platform: PlatformDep, session: Reading, scope: ScopeDep, page: PageDep) -> training_api.ModelPage:
    query = sa.select(tables.BaseModel).where(tables.BaseModel.workspace_id == scope.workspace.id)
    rows, total = page.fetch(session, query.order_by(tables.BaseModel.created_at.desc()))
    bodies = deployments.add_deployments(session, platform.settings, scope.workspace.id, map(models.base_row, rows))
    return training_api.ModelPage(models=bodies, **page.place(len(bodies), total))


@router.get("/models/base/{name:path}")
def base_model(name: str, platform: PlatformDep, session: Reading, scope: ScopeDep) -> training_api.ModelRow:
    row = models.base_row(models.find_base(session, scope.workspace, name))
    return deployments.add_deployments(session, platform.settings, scope.workspace.id, [row])[0]


@router.delete("/models/base/{name}", status_code=204)
@slow("objects")
def delete_base(name: str, platform: PlatformDep, scope: ScopeDep) -> None:
    with platform.db.write() as session:
        model = models.find_base(session, scope.workspace, name)
        models.refuse_in_use(session, model.workspace_id, model.name)
        session.delete(model)
        session.execute(sa.delete(tables.Merge).filter_by(id=model.id))
        audit.note(session, scope, "model.delete", model.name, workspace=scope.workspace)
    models.delete_files(platform, models.key_of(model.id), models.uploads_key(model.id))
    platform.objects.delete(f"runs/{model.id}/")  # of the merge that it came of


@router.get("/models/lora")
def lora_models(platform: PlatformDep, session: Reading, scope: ScopeDep, page: PageDep) -> training_api.ModelPage:
    query = models.select_trained(scope.workspace.id).order_by(tables.Checkpoint.created_at.desc())
    rows, total = page.fetch(session, query)
    bare = [models.trained_row(row, session.get_one(tables.Run, row.run_id)) for row in rows]
    bodies = deployments.add_deployments(session, platform.settings, scope.workspace.id, bare)
    room = deployments.room(session, platform.settings)
    return training_api.ModelPage(models=bodies, **room, **page.place(len(bodies), total))


@router.get("/models/{name}")
def lora_model(name: str, platform: PlatformDep, session: Reading, scope: ScopeDep) -> training_api.ModelRow:
    row = models.find_trained(session, scope.workspace.id, name)
    bare = models.trained_row(row, session.get_one(tables.Run, row.run_id))
    return deployments.add_deployments(session, platform.settings, scope.workspace.id, [bare])[0]


@router.delete("/models/{name}", status_code=204)
@slow("objects")
def delete_lora(name: str, platform: PlatformDep, scope: ScopeDep) -> None:
    with platform.db.write() as session:
        row = models.find_trained(session, scope.workspace.id, name)
        models.delete_trained(session, row)
        audit.note(session, scope, "model.delete", row.name, workspace=scope.workspace)
    models.delete_files(platform, row.path)


# What clients know and this platform does not offer: a 404 would read like a wrong address.
not_offered = APIRouter(prefix="/api/cli", route_class=JsonRoute, include_in_schema=False)
METHODS = ["GET", "POST", "DELETE"]


def refuse_dev_server(scope: ScopeDep) -> None:
    message = "this platform does not offer development servers"
    raise NotOffered(message, hint="run the rollout here: osmosis eval run CONFIG, or serve it: osmosis serve")


for path in ("/dev-rollout-server", "/dev-rollout-server/{name:path}"):
    not_offered.add_api_route(path, refuse_dev_server, methods=METHODS)


files_router = APIRouter(route_class=JsonRoute)
DataDep = Annotated[Scope, may("data")]
PARTS_AT_ONCE = 16  # Signed addresses work for a quarter of an hour, so a client asks for few at a time


@files_router.post("/api/cli/models/base")
@slow("objects")
def announce(body: training_api.NewModel, platform: PlatformDep, scope: DataDep) -> training_api.ModelUpload:
    with platform.db.write() as session:
        model, left = models.announce(session, platform, scope.workspace, scope.user, body.name, body.files)
        audit.note(session, scope, "model.upload", model.name, workspace=scope.workspace)
    models.delete_files(platform, *left)
    files, size = models.files_of(platform.objects, model), platform.settings.part_bytes
    return training_api.ModelUpload(id=model.id, name=model.name, status=model.status, part_size=size, files=files)


@files_router.post("/api/cli/models/base/{name}/uploads")
@slow("objects")
def next_parts(
    name: str, body: training_api.ModelPath, platform: PlatformDep, scope: DataDep
) -> training_api.ModelFileUpload:
    model, number, file = _awaited(platform, scope, name, body.path)
    parts = Parts(file.size, platform.settings.part_bytes)
    missing = [part for part in range(1, parts.count + 1) if part not in file.parts][:PARTS_AT_ONCE]
    plan = parts.plan(platform, models.parts_key(model.id, number), f"models/{model.id}/{number}", missing)
    return training_api.ModelFileUpload(path=file.path, upload=plan)


def _awaited(
    platform: Platform, scope: Scope, name: str, path: str
) -> tuple[tables.BaseModel, int, training_api.ModelFile]:
    with platform.db.read() as session:
        model = models.find_base(session, scope.workspace, name)
    for number, file in enumerate(models.files_of(platform.objects, model)):
        if file.path == path:
            return model, number, file
    raise NotFound(f"{path} is not a file of model {model.name!r}", field="path")


@files_router.put("/api/objects/models/{model_id}/{number}/{part}", dependencies=SIGNED)
async def put_part(model_id: str, number: int, part: int, request: Request, platform: PlatformDep) -> Response:
    file = await run_apart("objects", _to_fill, platform, model_id, number)
    if file is None or not 1 <= part <= (parts := Parts(file.size, platform.settings.part_bytes)).count:
        raise NotFound("this upload no longer exists", hint="upload the model again")
    if file.state == "uploaded":
        raise Conflict(f"{file.path} was already uploaded")
    key = models.parts_key(model_id, number)
    received = await receive_part(platform, key, parts, part, request.stream())
    stored, size = platform.settings.located(f"{key}{part}"), parts.bytes_of(part)
    if stored.stat().st_size != size:
        stored.unlink(missing_ok=True)
        raise ValidationError(f"part {part} of {file.path} is shorter than announced ({size} bytes)")
    return received


def _to_fill(platform: Platform, model_id: str, number: int) -> training_api.ModelFile | None:
    with platform.db.read() as session:
        model = session.get(tables.BaseModel, model_id)
    if model is None or not 0 <= number < len(model.files):
        return None
    return models.files_of(platform.objects, model)[number]


@files_router.post("/api/cli/models/base/{name}/uploads/complete")
@slow("objects")
def complete(name: str, body: training_api.ModelPath, platform: PlatformDep, scope: DataDep) -> training_api.ModelFile:
    model, number, file = _awaited(platform, scope, name, body.path)
    if file.state != "uploaded":
        parts, parts_key = Parts(file.size, platform.settings.part_bytes), models.parts_key(model.id, number)
        key, hint = models.key_of(model.id) + file.path, "upload the model again; only this file is sent"
        store_joined(platform, parts, parts_key, key, path=file.path, sha256=file.sha256, hint=hint)
        platform.objects.delete(parts_key)
    return file.model_copy(update={"state": "uploaded"})


@files_router.post("/api/cli/models/base/{name}/finalize")
@slow("objects")
def finalize(name: str, platform: PlatformDep, scope: DataDep) -> training_api.ModelRow:
    with platform.db.read() as session:
        model = models.find_base(session, scope.workspace, name)
    if model.status != models.READY:
        models.mark_ready(platform, model.id)
    with platform.db.read() as session:
        row = models.base_row(session.get_one(tables.BaseModel, model.id))
        return deployments.add_deployments(session, platform.settings, scope.workspace.id, [row])[0]


@files_router.get("/api/cli/models/base/{name}/files")
@slow("objects")
def base_files(name: str, platform: PlatformDep, scope: ScopeDep) -> training_api.ModelFiles:
    with platform.db.read() as session:
        model = models.find_base(session, scope.workspace, name)
    if model.status != models.READY:
        raise Conflict(f"base model {model.name!r} is not complete", hint="upload its folder again")
    files = [
        file.model_copy(update={"url": _fetch_url(platform, "base", model.id, models.key_of(model.id) + file.path)})
        for file in models.files_of(platform.objects, model)
    ]
    return training_api.ModelFiles(name=model.name, type="base", files=files)


@files_router.get("/api/cli/models/{name}/files")
@slow("objects")
def trained_files(name: str, platform: PlatformDep, scope: ScopeDep) -> training_api.ModelFiles:
    with platform.db.read() as session:
        row = models.find_trained(session, scope.workspace.id, name)
        tune = models.tune_of(session.get_one(tables.Run, row.run_id))
    models.weights_of(platform.settings, row)
    before = f"{row.path}/"
    stored = [(item, item.key.removeprefix(before)) for item in platform.objects.list(before)]
    files = [
        training_api.ModelFile(path=path, size=item.size, url=_fetch_url(platform, "lora", row.id, item.key))
        for item, path in stored
        if path == "adapter_config.json" or model_folder.is_model_file(path)
    ]
    return training_api.ModelFiles(name=row.name, type=tune, base_model=row.base_model, files=files)


def _fetch_url(platform: Platform, kind: str, model_id: str, key: str) -> str:
    return object_url(platform, key, f"model-files/{kind}/{model_id}/{PurePosixPath(key).name}", method="GET")


@files_router.get("/api/objects/model-files/{kind}/{model_id}/{name}", dependencies=SIGNED)
@slow("objects")
def get_file(kind: str, model_id: str, name: str, platform: PlatformDep) -> FileResponse:
    with platform.db.read() as session:
        row = session.get(tables.BaseModel if kind == "base" else tables.Checkpoint, model_id)
    if row is None:
        raise NotFound("this model was deleted")
    before = f"{row.path}/" if isinstance(row, tables.Checkpoint) else models.key_of(model_id)
    return FileResponse(platform.objects.fetch(before + name), media_type="application/octet-stream", filename=name)


inference_router = APIRouter(include_in_schema=False)
GOOGLE_METHODS = ("generateContent", "streamGenerateContent", "countTokens")
CLOSED = 499
MODELS_SINCE = "2026-01-01T00:00:00Z"


@inference_router.post("/v1/chat/completions")
@inference_router.post("/v1/messages")
@inference_router.post("/v1/messages/count_tokens")
@inference_router.post("/v1/responses")
@inference_router.post("/v1/responses/input_tokens")
@inference_router.post("/v1/models/{called:path}")
@inference_router.post("/v1beta/models/{called:path}")
async def pass_on(request: Request) -> Response:
    """Pass a call on to the deployment that `model`, or Google's path, names; it understands every dialect."""
    platform: Platform = request.app.state.platform
    proxy: InferenceProxy = request.app.state.inference
    try:
        credential, body = inference.read_key(request), await request.body()
        name, _, method = request.path_params.get("called", "").rpartition(":")
        if method and (method not in GOOGLE_METHODS or not name):
            raise NotFound(f"{method} is not answered by a model", hint=f"possible: {', '.join(GOOGLE_METHODS)}")
        headers = request.headers.get(WORKSPACE_HEADER), request.headers.get(GIT_HEADER)
        target = await run_in_threadpool(inference.find_target, platform, credential, headers, name or _model_of(body))
        path = f"/models/{quote(target.model)}:{method}" if name else request.url.path.removeprefix("/v1")
        asking = asyncio.create_task(proxy.ask(target, body, path))
        leaving = asyncio.create_task(_wait_for_disconnect(request))
        try:
            await asyncio.wait({asking, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                return Response(status_code=CLOSED)
            return recorded(platform, target, path, body, asking.result())
        finally:
            for task in (asking, leaving):
                if not task.done():
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        await task
    except OsmosisError as error:
        return _refuse_call(error, request)


@inference_router.get("/v1/models")
@inference_router.get("/v1beta/models")
def list_models(request: Request) -> Response:
    platform: Platform = request.app.state.platform
    try:
        credential = inference.read_key(request)
        workspace, identity = request.headers.get(WORKSPACE_HEADER), request.headers.get(GIT_HEADER)
        with platform.db.read() as session:
            asker = inference.identify_asker(session, credential, workspace=workspace, identity=identity)
            rows: list[dict[str, object]] = [
                {"id": run.name, "object": "model", "created": int(run.created_at.timestamp()), "owned_by": "osmosis"}
                for run in inference.list_served(session, asker)
            ]
    except OsmosisError as error:
        return _refuse_call(error, request)
    if "x-goog-api-key" in request.headers:
        names = [{"name": f"models/{row['id']}", "supportedGenerationMethods": GOOGLE_METHODS} for row in rows]
        return Response(orjson.dumps({"models": names}), media_type="application/json")
    if "anthropic-version" in request.headers:
        rows = [{**row, "type": "model", "display_name": row["id"], "created_at": MODELS_SINCE} for row in rows]
    content = {"object": "list", "data": rows, "has_more": False}
    return Response(orjson.dumps(content), media_type="application/json")


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _model_of(body: bytes) -> str:
    try:
        request = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ValidationError(f"the body is not JSON: {error}") from None
    if not isinstance(request, dict) or not isinstance(request.get("model"), str) or not request["model"]:
        raise ValidationError('the body must be an object with a "model"', hint="GET /v1/models lists what is deployed")
    name: str = request["model"]
    return name


def _refuse_call(error: OsmosisError, request: Request) -> Response:
    status = error.http_status
    if status == 409:  # which clients of this API take for a sign to try again
        status = 400
    kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = "server_error" if status >= 500 else kinds.get(status, "invalid_request_error")
    headers = {}
    if (wait := error.details.get("retry_after")) is not None:
        headers["Retry-After"] = str(wait)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    dialect = dialect_of_path(request.url.path)
    body = error_body(error, kind)
    if dialect is not CHAT:
        if status == 429 and dialect is RESPONSES:
            status = OVERLOADED
        message, code = str(body["error"]["message"]), str(body["error"]["code"])
        body = dialect.error_body(EndpointError(status, message, code))
    return Response(orjson.dumps(body), status, headers, media_type="application/json")
