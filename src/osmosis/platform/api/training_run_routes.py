"""`/api/cli/training-runs`: check, submit, resume, retry, curves and checkpoints."""

from __future__ import annotations

from fastapi import Body

from osmosis.platform.services import audit, run_bodies, run_retry, submit, training, training_check
from osmosis.platform.slow_work import slow
from osmosis.records.config import TrainingConfig
from osmosis.records.contract.run_bodies import RetryRun
from osmosis.records.contract.submitted import SubmittedRun
from osmosis.records.contract.training_bodies import CheckpointList, TrainingCheck, TrainingMetrics

from .deps import PlatformDep, ScopeDep
from .run_routes import RunRoutes

routes = RunRoutes("training")
router = routes.router()
PREFIX = routes.prefix


@router.post(PREFIX)
@slow("checks")
def create(platform: PlatformDep, scope: ScopeDep, body: dict[str, object] = Body()) -> SubmittedRun:
    request = submit.parse(body, "training")
    training.check_machine(platform.settings)
    run = submit.submit(platform, scope.workspace, scope, request, kind="training")
    return run_bodies.accepted(platform.settings, run)


@router.post(f"{PREFIX}/check")
def check(
    platform: PlatformDep, scope: ScopeDep, body: dict[str, object] = Body(), eval_run: str | None = None
) -> TrainingCheck:
    config = submit.parse(body, "training").config
    assert isinstance(config, TrainingConfig)
    with platform.db.read() as session:
        return training_check.check(session, scope.workspace, config, eval_run)


@router.post(f"{PREFIX}/{{name}}/resume")
def resume(name: str, platform: PlatformDep, scope: ScopeDep, body: RetryRun | None = None) -> SubmittedRun:
    training.check_machine(platform.settings)
    with platform.db.write() as session:
        run = routes.find(session, scope, name)
        run_retry.resume(session, platform.vault, run, scope.user, (body and body.secrets) or {})
        audit.note(session, scope, "run.resume", run.name, workspace=scope.workspace)
        return run_bodies.accepted(platform.settings, run)


@router.post(f"{PREFIX}/{{name}}/retry")
def retry(name: str, platform: PlatformDep, scope: ScopeDep, body: RetryRun | None = None) -> SubmittedRun:
    training.check_machine(platform.settings)
    with platform.db.write() as session:
        run = routes.find(session, scope, name)
        again = run_retry.once_more(session, platform.vault, run, scope.user, (body and body.secrets) or {})
        audit.note(session, scope, "run.retry", run.name, workspace=scope.workspace, made=again.name)
        return run_bodies.accepted(platform.settings, again)


@router.get(f"{PREFIX}/{{name}}/metrics")
def metrics(name: str, platform: PlatformDep, scope: ScopeDep) -> TrainingMetrics:
    with platform.db.read() as session:
        return training.body(session, routes.find(session, scope, name))


@router.get(f"{PREFIX}/{{name}}/checkpoints")
def checkpoints(name: str, platform: PlatformDep, scope: ScopeDep) -> CheckpointList:
    with platform.db.read() as session:
        return training.checkpoints(session, routes.find(session, scope, name))
