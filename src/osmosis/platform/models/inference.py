"""Calls of deployed models: a person's token reaches those of their workspaces, a lease the one its run evaluates."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches

import aiohttp
from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from osmosis.base.jsonable import JsonObject
from osmosis.base.net import is_loopback, parse_host
from osmosis.dialects import Call, EndpointError, Envelope, dialect_of_path
from osmosis.errors import AuthRequired, Conflict, Forbidden, NetworkError, NotFound, OsmosisError, RateLimited
from osmosis.platform import Platform, tables
from osmosis.platform.auth import tokens
from osmosis.platform.auth.dependencies import bearer
from osmosis.platform.auth.tokens import JOB_PREFIX
from osmosis.platform.models import deployments
from osmosis.platform.runs import lifecycle
from osmosis.platform.scheduling import leases
from osmosis.platform.workspaces import service as workspaces
from osmosis.records.run.job import derive_inference_key
from osmosis.records.run.plan import PLATFORM_MODEL
from osmosis.records.run.rollout import Failure

LOADING_S = 5


class ModelLoading(OsmosisError):
    code = "MODEL_LOADING"
    http_status = 503


@dataclass(frozen=True, slots=True)
class Asker:
    workspaces: tuple[str, ...]
    only_model: str | None = None
    token: tables.Token | None = None


@dataclass(frozen=True, slots=True)
class InferenceTarget:
    deployment_id: str
    model: str
    url: str
    key: str
    workspace_id: str = ""  # Empty for a call of a run


def read_key(request: Request) -> str:
    """Return the token, which clients of Anthropic and Google send in headers of their own."""
    return request.headers.get("x-api-key") or request.headers.get("x-goog-api-key") or bearer(request)


def identify_asker(session: Session, credential: str, *, workspace: str | None, identity: str | None) -> Asker:
    if credential.startswith(JOB_PREFIX):
        run = leases.find_run_of_lease(session, credential)
        if run is None:
            raise AuthRequired("this lease is no longer that of a run", code="LEASE_LOST")
        return Asker((run.workspace_id,), run.model_path)
    row = tokens.authenticate(session, credential)
    tokens.require_scope(row, "inference")
    if workspace or identity:
        row_workspace = workspaces.resolve(session, row.user, identity=identity, name=workspace)[0]
        tokens.require_workspace(row, row_workspace)
        return Asker((row_workspace.id,), token=row)
    if row.workspace_id is not None:
        return Asker((workspaces.by_id(session, row.user, row.workspace_id)[0].id,), token=row)
    return Asker(tuple(space.id for space, _, _ in workspaces.list_workspaces(session, row.user)), token=row)


def list_served(session: Session, asker: Asker) -> list[tables.Deployment]:
    if asker.only_model is not None:
        with suppress(NotFound):
            deployment = _find_deployment(session, asker, asker.only_model)
            return [deployment] if deployments.endpoint_of(deployment) else []
        return []
    rows = session.scalars(deployments.select_deployments(*asker.workspaces))
    return [row for row in rows if deployments.endpoint_of(row)]


def target(session: Session, asker: Asker, model: str) -> InferenceTarget:
    """Return where this model answers; raise NotFound, or `ModelLoading` if it will answer later."""
    if asker.only_model is not None and model != asker.only_model:
        raise Forbidden(f"this lease is for the model {asker.only_model} alone")
    deployment = _find_deployment(session, asker, model)
    url = deployments.endpoint_of(deployment)
    if not url:
        message = f"model {deployment.name} is deployed and being loaded"
        raise ModelLoading(message, hint="try again in a few seconds", retry_after=LOADING_S)
    if not is_loopback(parse_host(url)):
        raise Forbidden(f"the deployment of {deployment.name} does not answer on this machine")

    workspace_id = deployment.workspace_id if asker.token is not None else ""
    hashes = [job.lease_hash for job in lifecycle.list_jobs(session, deployment) if job.state == tables.QueueState.HELD]
    key = derive_inference_key(next(iter(hashes), None) or "")
    return InferenceTarget(deployment.id, deployment.name, url, key, workspace_id)


def _find_deployment(session: Session, asker: Asker, model_name: str) -> tables.Deployment:
    name = model_name.removeprefix(PLATFORM_MODEL).rpartition(":")[2]
    deployed, model = deployments.select_deployments(*asker.workspaces), None
    named = list(session.scalars(deployed.where(tables.Deployment.name == name)))
    if not named:
        for workspace_id in asker.workspaces:
            try:
                model = deployments.deployable(session, workspace_id, name)
            except NotFound:
                continue
            deployment = deployments.find(session, workspace_id, model.name)
            if deployment is not None and deployments.is_active(deployment):
                named.append(deployment)
            elif deployment is not None and deployment.failure:
                reason = Failure.model_validate(deployment.failure).message
                hint = f"osmosis model logs {model.name}, then: osmosis model deploy {model.name}"
                message = f"model {model.name!r} is not deployed any more: {reason}"
                raise NotFound(message, hint=hint, code="model_not_deployed")
    if len(named) > 1:
        message = f"several of your workspaces have deployed a model named {name!r}"
        raise Conflict(message, hint="say which: send X-Osmosis-Workspace: NAME", code="MODEL_AMBIGUOUS")
    if named:
        return named[0]
    if model is not None:
        message = f"model {model.name!r} is not deployed"
        raise NotFound(message, hint=f"osmosis model deploy {model.name}", code="model_not_deployed")
    served = list(session.scalars(deployed.with_only_columns(tables.Deployment.name)))
    if near := get_close_matches(name, served, n=1, cutoff=0.5):
        hint = f"did you mean {near[0]}?"
    else:
        hint = f"deployed: {', '.join(served)}" if served else "no model is deployed: osmosis model deploy NAME"
    raise NotFound(f"no model named {name!r}", hint=hint, code="model_not_found")


def find_target(
    platform: Platform, credential: str, headers: tuple[str | None, str | None], model: str
) -> InferenceTarget:
    with platform.db.read() as session:
        asker = identify_asker(session, credential, workspace=headers[0], identity=headers[1])
        if asker.token is not None:
            platform.rates.take("question", asker.token.user_id)
        answer = target(session, asker, model)
    if asker.token is not None:
        tokens.touch(platform.db, asker.token)
    return answer


log = logging.getLogger("osmosis.platform")

IN_FLIGHT = 1024
CONNECT_S = 5.0
BUSY_S = 2
MAX_ANSWER = 64 * 1024 * 1024  # Bytes of an answer that is not streamed, which is held in memory
PASSED_ON = ("content-type", "retry-after", "x-should-retry")


class TookTooLong(OsmosisError):
    code = "TIMEOUT"
    http_status = 504


class InferenceProxy:
    def __init__(self, timeout_s: float) -> None:
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, connect=CONNECT_S)
        self._session: aiohttp.ClientSession | None = None
        self._in_flight: Counter[str] = Counter()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def ask(self, target: InferenceTarget, body: bytes, path: str = "/chat/completions") -> Response:
        """Return the response once its head is there; its body is streamed. Raise OsmosisError without an answer."""
        if self._in_flight[target.deployment_id] >= IN_FLIGHT:
            message = f"model {target.model} already has {IN_FLIGHT} requests in flight"
            raise RateLimited(message, hint="ask fewer at once", retry_after=BUSY_S)
        self._in_flight[target.deployment_id] += 1
        answer = None
        try:
            answer = await self._open(target, body, path)
            headers = {name: answer.headers[name] for name in PASSED_ON if name in answer.headers}
            content = None if "event-stream" in headers.get("content-type", "") else await _read(target, answer)
        except BaseException:
            self._let_go(target, answer)
            raise
        if content is None:
            return StreamingResponse(self._pieces(target, answer, path), answer.status, headers)
        self._let_go(target, answer)
        return Response(content, answer.status, headers)

    async def _open(self, target: InferenceTarget, body: bytes, path: str) -> aiohttp.ClientResponse:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=self._timeout, trust_env=False, auto_decompress=False
            )
        headers = {"Authorization": f"Bearer {target.key}", "Content-Type": "application/json"}
        try:
            # Whatever listens at the address of a job that has died must lead nowhere else, and inflate nothing.
            return await self._session.post(f"{target.url}{path}", data=body, headers=headers, allow_redirects=False)
        except (asyncio.TimeoutError, TimeoutError):
            raise TookTooLong(f"model {target.model} did not answer in time", hint="ask for fewer tokens") from None
        except aiohttp.ClientError as error:
            log.warning("deployment %s does not answer: %s", target.model, error)
            message = f"model {target.model} does not answer: it is being started again"
            raise ModelLoading(message, retry_after=LOADING_S) from None

    async def _pieces(self, target: InferenceTarget, answer: aiohttp.ClientResponse, path: str) -> AsyncIterator[bytes]:
        try:
            async for piece in answer.content.iter_any():
                yield piece
        except (aiohttp.ClientError, asyncio.TimeoutError, TimeoutError) as error:
            log.warning("the answer of deployment %s broke off: %s", target.model, error)
            dialect = dialect_of_path(path)
            broken = EndpointError(502, f"the answer of model {target.model} broke off", "server_error")
            yield dialect.stream(Call([]), Envelope(target.model)).fail(broken)
        finally:
            self._let_go(target, answer)

    def _let_go(self, target: InferenceTarget, answer: aiohttp.ClientResponse | None) -> None:
        self._in_flight[target.deployment_id] -= 1
        if not self._in_flight[target.deployment_id]:
            del self._in_flight[target.deployment_id]
        if answer is not None:
            answer.close()  # one that was not read to its end ends the question


async def _read(target: InferenceTarget, answer: aiohttp.ClientResponse) -> bytes:
    content = bytearray()
    try:
        async for piece in answer.content.iter_any():
            content += piece
            if len(content) > MAX_ANSWER:
                raise NetworkError(f"the answer of model {target.model} is larger than {MAX_ANSWER} bytes")
    except (asyncio.TimeoutError, TimeoutError):
        raise TookTooLong(f"model {target.model} did not answer in time", hint="ask for fewer tokens") from None
    except aiohttp.ClientError as error:
        raise NetworkError(f"the answer of model {target.model} broke off: {error}", hint="ask again") from None
    return bytes(content)


def error_body(error: OsmosisError, kind: str) -> JsonObject:
    message = f"{error.message}: {error.hint}" if error.hint else error.message
    code = str(error.details.get("code", error.code)).lower()
    return {"error": {"message": message, "type": kind, "code": code, "param": None}}
