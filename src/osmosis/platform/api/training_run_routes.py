"""`/api/cli/training-runs`: submit, curves and checkpoints."""

from __future__ import annotations

from fastapi import Body

from osmosis.platform.services import run_bodies, submit, training
from osmosis.records.contract.run_bodies import SubmittedRun
from osmosis.records.contract.training_bodies import CheckpointList, TrainingMetrics

from .deps import PlatformDep, ScopeDep
from .run_routes import RunRoutes

routes = RunRoutes("training")
router = routes.router()
PREFIX = routes.prefix


@router.post(PREFIX)
def create(platform: PlatformDep, scope: ScopeDep, body: dict[str, object] = Body()) -> SubmittedRun:
    request = submit.parse(body, "training")
    training.check_machine(platform.settings)
    run = submit.submit(platform, scope.workspace, scope.user, request, kind="training")
    return run_bodies.accepted(platform.settings, run)


@router.get(f"{PREFIX}/{{name}}/metrics")
def metrics(name: str, platform: PlatformDep, scope: ScopeDep) -> TrainingMetrics:
    with platform.db.read() as session:
        return training.body(session, routes.find(session, scope, name))


@router.get(f"{PREFIX}/{{name}}/checkpoints")
def checkpoints(name: str, platform: PlatformDep, scope: ScopeDep) -> CheckpointList:
    with platform.db.read() as session:
        return training.checkpoints(session, routes.find(session, scope, name))
