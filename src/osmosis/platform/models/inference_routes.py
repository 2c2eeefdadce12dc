"""Routes of deployed models in four dialects; streamed, so that no thread waits and who hangs up ends the call."""

import asyncio
from contextlib import suppress
from urllib.parse import quote

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool

from osmosis.dialects import CHAT, RESPONSES, EndpointError, dialect_of_path
from osmosis.dialects.call import OVERLOADED
from osmosis.errors import NotFound, OsmosisError, ValidationError
from osmosis.platform import Platform
from osmosis.platform.auth.dependencies import GIT_HEADER, WORKSPACE_HEADER
from osmosis.platform.datasets.production import recorded
from osmosis.platform.models import inference
from osmosis.platform.models.inference import InferenceProxy, error_body

router = APIRouter(include_in_schema=False)
GOOGLE_METHODS = ("generateContent", "streamGenerateContent", "countTokens")
CLOSED = 499
MODELS_SINCE = "2026-01-01T00:00:00Z"


@router.post("/v1/chat/completions")
@router.post("/v1/messages")
@router.post("/v1/messages/count_tokens")
@router.post("/v1/responses")
@router.post("/v1/responses/input_tokens")
@router.post("/v1/models/{called:path}")
@router.post("/v1beta/models/{called:path}")
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
        return _refusal(error, request)


@router.get("/v1/models")
@router.get("/v1beta/models")
def models(request: Request) -> Response:
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
        return _refusal(error, request)
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


def _refusal(error: OsmosisError, request: Request) -> Response:
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
