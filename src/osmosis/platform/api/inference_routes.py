"""`/v1/chat/completions` and `/v1/models`: deployed models, as OpenAI clients ask them. The bearer is a token, or the
lease of a run for the model that it evaluates.

A question is passed on to the job of its deployment, and the answer back, piece by piece as it comes: no thread waits
for a model, and whoever hangs up ends the question. Errors have the shape that OpenAI clients show.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool

from osmosis.errors import OsmosisError, ValidationError
from osmosis.platform import Platform
from osmosis.platform.inference_proxy import InferenceProxy, error_body
from osmosis.platform.services import inference

from .deps import GIT_HEADER, WORKSPACE_HEADER, bearer

router = APIRouter(prefix="/v1", include_in_schema=False)
CLOSED = 499
"""The caller hung up: nobody reads this."""


@router.post("/chat/completions")
async def chat_completions(request: Request) -> Response:
    """Passed on to the deployment that `model` names."""
    platform: Platform = request.app.state.platform
    proxy: InferenceProxy = request.app.state.inference
    try:
        credential, body = bearer(request), await request.body()
        headers = request.headers.get(WORKSPACE_HEADER), request.headers.get(GIT_HEADER)
        found = await run_in_threadpool(inference.of_platform, platform, credential, headers, _model_of(body))
        return await _unless_gone(request, proxy, found, body)
    except OsmosisError as error:
        return _refusal(error)


@router.get("/models")
async def models(request: Request) -> Response:
    """The deployments that answer now."""
    platform: Platform = request.app.state.platform
    try:
        rows = await run_in_threadpool(_served, platform, bearer(request), request)
    except OsmosisError as error:
        return _refusal(error)
    return Response(orjson.dumps({"object": "list", "data": rows}), media_type="application/json")


def _served(platform: Platform, credential: str, request: Request) -> list[dict[str, object]]:
    workspace, identity = request.headers.get(WORKSPACE_HEADER), request.headers.get(GIT_HEADER)
    with platform.db.read() as session:
        who = inference.asker(session, credential, workspace=workspace, identity=identity)
        return [
            {"id": run.name, "object": "model", "created": int(run.created_at.timestamp()), "owned_by": "osmosis"}
            for run in inference.served_models(session, who)
        ]


async def _unless_gone(
    request: Request, proxy: InferenceProxy, target: inference.InferenceTarget, body: bytes
) -> Response:
    """The answer, or nothing when the caller hangs up before it has begun."""
    asking = asyncio.create_task(proxy.ask(target, body))
    leaving = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({asking, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return asking.result() if asking.done() else Response(status_code=CLOSED)
    finally:
        for task in (asking, leaving):
            if not task.done():
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _model_of(body: bytes) -> str:
    try:
        wanted = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ValidationError(f"the body is not JSON: {error}") from None
    if not isinstance(wanted, dict) or not isinstance(wanted.get("model"), str) or not wanted["model"]:
        raise ValidationError('the body must be an object with a "model"', hint="GET /v1/models lists what is deployed")
    name: str = wanted["model"]
    return name


def _refusal(error: OsmosisError) -> Response:
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
    content = orjson.dumps(error_body(error, kind))
    return Response(content, status, headers, media_type="application/json")
