"""`/api/cli/eval-runs`: submit, retry, and everything a run produced; the rest is as with any run (`run_routes`)."""

from __future__ import annotations

from typing import Annotated

import orjson
from fastapi import Body
from fastapi.responses import Response as Raw
from fastapi.responses import StreamingResponse

from osmosis.errors import NotFound
from osmosis.platform import tables
from osmosis.platform.db import count_of
from osmosis.platform.objects.addresses import address, check_url, sign_url
from osmosis.platform.objects.store import Content
from osmosis.platform.services import audit, rollouts, run_bodies, run_results, run_retry, samples, submit
from osmosis.platform.services.paging import PageRange
from osmosis.platform.slow_work import pieces_apart, slow
from osmosis.records.contract.eval_bodies import EvalMetrics
from osmosis.records.contract.run_bodies import (
    FileAddress,
    FileAddresses,
    OutcomePage,
    RetriedRun,
    RetryRun,
    RolloutPage,
    RunFiles,
    WantedFiles,
)
from osmosis.records.contract.submitted import SubmittedRun
from osmosis.records.rollout import Rollout

from .deps import PlatformDep, Scope, ScopeDep, may
from .run_routes import RunRoutes

routes = RunRoutes("eval")
router = routes.router()
PREFIX = routes.prefix
MAX_ROLLOUTS = 200


@router.post(PREFIX)
@slow("checks")
def create(platform: PlatformDep, scope: ScopeDep, body: dict[str, object] = Body()) -> SubmittedRun:
    request = submit.parse(body, "eval")
    run = submit.submit(platform, scope.workspace, scope, request, kind="eval")
    return run_bodies.accepted(platform.settings, run)


@router.get(f"{PREFIX}/{{name}}/metrics")
def metrics(name: str, platform: PlatformDep, scope: ScopeDep) -> EvalMetrics:
    with platform.db.read() as session:
        return run_results.metrics(session, routes.find(session, scope, name))


@router.post(f"{PREFIX}/{{name}}/retry")
def retry(name: str, platform: PlatformDep, scope: ScopeDep, body: RetryRun | None = None) -> RetriedRun:
    with platform.db.write() as session:
        run = routes.find(session, scope, name)
        count = run_retry.retry(session, platform.vault, run, scope.user, body or RetryRun())
        audit.note(session, scope, "run.retry", run.name, workspace=scope.workspace)
        return run_bodies.retried(platform.settings, run, count)


@router.get(f"{PREFIX}/{{name}}/rollouts")
def list_rollouts(
    name: str,
    platform: PlatformDep,
    scope: ScopeDep,
    limit: int = 50,
    offset: int = 0,
    status: str | None = None,
) -> RolloutPage:
    page = PageRange(limit, offset, top=MAX_ROLLOUTS)
    with platform.db.read() as session:
        run = routes.find(session, scope, name)
        found, total = page.fetch(session, rollouts.listed(run.id, status))
    return RolloutPage(rollouts=[rollouts.body(row) for row in found], **page.place(len(found), total))


@router.get(f"{PREFIX}/{{name}}/outcomes", response_model=OutcomePage)
def list_outcomes(
    name: str, platform: PlatformDep, scope: ScopeDep, limit: int = 50, offset: int = 0, whole: bool = False
) -> Raw:
    """Rollouts without what was said in them, for comparing runs; `whole`: with it, in the order of their arrival."""
    page = PageRange(limit, offset, top=MAX_ROLLOUTS)
    with platform.db.read() as session:
        run = routes.find(session, scope, name)
        total = count_of(session, rollouts.listed(run.id))
        found = (rollouts.arrived if whole else rollouts.outcomes)(
            session, run.id, limit=page.limit, offset=page.offset
        )
    place = orjson.dumps(page.place(len(found), total))
    return Raw(b'{"outcomes":[' + b",".join(found) + b"]," + place[1:], media_type="application/json")


@router.get(f"{PREFIX}/{{name}}/rollouts/{{row}}/{{attempt}}", response_model=Rollout)
def get_rollout(name: str, row: int, attempt: int, platform: PlatformDep, scope: ScopeDep) -> Raw:
    with platform.db.read() as session:
        run = routes.find(session, scope, name)
        text = rollouts.text(session, run.id, row, attempt)
    return Raw(text, media_type="application/json")


@router.get(f"{PREFIX}/{{name}}/samples/manifest")
@slow("objects")
def manifest(
    name: str, platform: PlatformDep, scope: ScopeDep, types: str | None = None, rows: str | None = None
) -> RunFiles:
    with platform.db.read() as session:
        run = routes.find(session, scope, name)
    stored = samples.kept(platform.objects, run.id)
    with platform.db.read() as session:
        return samples.manifest(session, platform.settings, session.get_one(tables.Run, run.id), stored, types, rows)


@router.post(f"{PREFIX}/{{name}}/samples/download-urls")
@slow("objects")
def download_urls(
    name: str, body: WantedFiles, platform: PlatformDep, scope: Annotated[Scope, may("read")]
) -> FileAddresses:
    samples.check_paths([wanted.path for wanted in body.items])
    with platform.db.read() as session:
        run = routes.find(session, scope, name)
    stored = samples.kept(platform.objects, run.id)
    with platform.db.read() as session:
        keys = [samples.key_of(session, run, stored, wanted.path) for wanted in body.items]
    answer = []
    for wanted, key in zip(body.items, keys, strict=True):
        place = f"runs/{run.id}/{wanted.path}"
        url = address(platform, key, place, method="GET") if key else sign_url(platform, place, method="GET")
        answer.append(FileAddress(path=wanted.path, url=url, token=wanted.token))
    return FileAddresses(items=answer, expires_in=platform.settings.url_lifetime_s)


@router.get("/api/objects/runs/{run_id}/{path:path}")
@slow("objects")
def get_object(run_id: str, path: str, expires: int, signature: str, platform: PlatformDep) -> Raw:
    check_url(platform, f"runs/{run_id}/{path}", method="GET", expires=expires, signature=signature)
    stored = samples.kept(platform.objects, run_id)
    with platform.db.read() as session:
        run = session.get(tables.Run, run_id)
        if run is None:
            raise NotFound("this run was deleted")
        found = samples.artifact(session, platform.settings, run, stored, path)
        if found is None:
            return Raw(samples.content(session, platform.settings, run, path), media_type="application/octet-stream")
    left = platform.objects.open(found) if isinstance(found, str) else found
    return StreamingResponse(
        pieces_apart("objects", left.pieces) if isinstance(left, Content) else left.pieces(),
        media_type="application/octet-stream",
        headers={"Content-Length": str(left.size)},
    )
