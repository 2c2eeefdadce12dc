"""Who may ask a deployed model, and where it answers: from the credential and the model's name to an address.

A person's token reaches the deployments of the person's workspaces; the lease of a run reaches the model that the run
evaluates, and nothing else. Asks no model itself: `platform.inference` passes the question on.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches

from sqlalchemy.orm import Session

from osmosis.base.net import host_of, is_loopback
from osmosis.errors import AuthRequired, Conflict, Forbidden, NotFound, OsmosisError
from osmosis.platform import Platform, tables
from osmosis.platform.security.tokens import JOB_PREFIX
from osmosis.records.plan import PLATFORM_MODEL
from osmosis.records.rollout import Failure
from osmosis.records.run import inference_key

from . import deployments, job_queue, tokens, workspaces

LOADING_S = 5


class ModelLoading(OsmosisError):
    """It is deployed and does not answer yet: asked again in some seconds, it will."""

    code = "MODEL_LOADING"
    http_status = 503


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks, and which workspaces that credential reaches."""

    workspaces: tuple[str, ...]
    """Ids."""
    only_model: str | None = None
    """Of a lease: the model of its run."""
    token: tables.Token | None = None
    """None of a lease."""


@dataclass(frozen=True, slots=True)
class InferenceTarget:
    """Where a question goes."""

    run_id: str
    model: str
    url: str
    """Of its `/v1`, on this machine."""
    key: str


def asker(session: Session, credential: str, *, workspace: str | None, identity: str | None) -> Asker:
    """Whose credential this is. AuthRequired when it is nobody's, Forbidden without the scope."""
    if credential.startswith(JOB_PREFIX):
        run = job_queue.run_of_lease(session, credential)
        if run is None:
            raise AuthRequired("this lease is no longer that of a run", code="LEASE_LOST")
        return Asker((run.workspace_id,), run.model_path)
    row = tokens.authenticate(session, credential)
    tokens.require_scope(row, "inference")
    if workspace or identity:
        found = workspaces.resolve(session, row.user, identity=identity, name=workspace)[0]
        tokens.require_workspace(row, found)
        return Asker((found.id,), token=row)
    if row.workspace_id is not None:
        return Asker((workspaces.by_id(session, row.user, row.workspace_id)[0].id,), token=row)
    return Asker(tuple(one.id for one, _, _ in workspaces.of_user(session, row.user)), token=row)


def served_models(session: Session, who: Asker) -> list[tables.Run]:
    """The deployments that answer now; for a lease the model of its run alone."""
    if who.only_model is not None:
        with suppress(NotFound):
            run = _deployment(session, who, who.only_model)
            return [run] if deployments.endpoint_of(run) else []
        return []
    found = session.scalars(deployments.of_workspaces(*who.workspaces))
    return [run for run in found if deployments.endpoint_of(run)]


def target(session: Session, who: Asker, wanted: str) -> InferenceTarget:
    """Where the model with this name answers. NotFound says what to type, `ModelLoading` when to ask again."""
    if who.only_model is not None and wanted != who.only_model:
        raise Forbidden(f"this lease is for the model {who.only_model} alone")
    run = _deployment(session, who, wanted)
    url = deployments.endpoint_of(run)
    if not url:
        what = f"model {run.name} is deployed and being loaded"
        raise ModelLoading(what, hint="try again in a few seconds", retry_after=LOADING_S)
    if not is_loopback(host_of(url)):
        raise Forbidden(f"the deployment of {run.name} does not answer on this machine")
    job = job_queue.of_run(session, run.id)
    return InferenceTarget(run.id, run.name, url, inference_key((job and job.lease_hash) or ""))


def _deployment(session: Session, who: Asker, wanted: str) -> tables.Run:
    """The active deployment of a model, by its name, `osmosis/NAME` or `BASE:NAME`, or by its training run's."""
    name = name_of(wanted)
    named = list(session.scalars(deployments.of_workspaces(*who.workspaces).where(tables.Run.name == name)))
    known = None
    if not named:
        for workspace_id in who.workspaces:
            try:
                known = deployments.deployable(session, workspace_id, name)
            except NotFound:
                continue
            found = deployments.find(session, workspace_id, known.name)
            if found is not None and deployments.is_active(found):
                named.append(found)
            elif found is not None and found.failure:
                raise _failed(found)
    if len(named) > 1:
        what = f"several of your workspaces have deployed a model named {name!r}"
        raise Conflict(what, hint="say which: send X-Osmosis-Workspace: NAME", code="MODEL_AMBIGUOUS")
    if named:
        return named[0]
    if known is not None:
        what = f"model {known.name!r} is not deployed"
        raise NotFound(what, hint=f"osmosis model deploy {known.name}", code="model_not_deployed")
    raise _unknown(session, who, name)


def name_of(wanted: str) -> str:
    """The name in the store, of what a question calls `model`."""
    return wanted.removeprefix(PLATFORM_MODEL).rpartition(":")[2]


def _failed(run: tables.Run) -> NotFound:
    why = Failure.model_validate(run.failure).message
    hint = f"osmosis model logs {run.name}, then: osmosis model deploy {run.name}"
    return NotFound(f"model {run.name!r} is not deployed any more: {why}", hint=hint, code="model_not_deployed")


def _unknown(session: Session, who: Asker, name: str) -> NotFound:
    served = list(session.scalars(deployments.of_workspaces(*who.workspaces).with_only_columns(tables.Run.name)))
    near = get_close_matches(name, served, n=1, cutoff=0.5)
    if near:
        hint = f"did you mean {near[0]}?"
    else:
        hint = f"deployed: {', '.join(served)}" if served else "no model is deployed: osmosis model deploy NAME"
    return NotFound(f"no model named {name!r}", hint=hint, code="model_not_found")


def of_platform(
    platform: Platform, credential: str, headers: tuple[str | None, str | None], wanted: str
) -> InferenceTarget:
    """`target`, in a session of its own. `headers`: workspace, identity.

    RateLimited for a person who asks too often; how much a run asks is limited by its quota.
    """
    with platform.db.read() as session:
        who = asker(session, credential, workspace=headers[0], identity=headers[1])
        if who.token is not None:
            platform.rates.take("question", who.token.user_id)
        found = target(session, who, wanted)
    if who.token is not None:
        tokens.touch(platform.db, who.token)
    return found
