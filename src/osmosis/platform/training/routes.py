from fastapi import Body

from osmosis.platform.auth.dependencies import PlatformDep, ScopeDep
from osmosis.platform.background import slow
from osmosis.platform.http import Reading, Writing
from osmosis.platform.runs import lifecycle, retry as run_retry, submit, views
from osmosis.platform.runs.routes import RunRoutes
from osmosis.platform.scheduling import workers
from osmosis.platform.training import service
from osmosis.platform.workspaces import audit
from osmosis.records.api.runs import RetryRun, SubmittedRun
from osmosis.records.api.training import CheckpointList, TrainedRows, TrainingCheck, TrainingMetrics
from osmosis.records.config.run_config import TrainingConfig

routes = RunRoutes("training")
router = routes.router()
PREFIX = routes.prefix


@router.post(PREFIX)
@slow("checks")
def create(platform: PlatformDep, scope: ScopeDep, body: dict[str, object] = Body()) -> SubmittedRun:
    request = submit.parse(body, "training")
    service.check_machine(platform.settings)
    run = submit.submit(platform, scope.workspace, scope, request, kind="training")
    return views.build_accepted(platform.settings, run, sandbox=workers.describe_sandboxes(platform, run))


@router.post(f"{PREFIX}/check")
def check(
    session: Reading, scope: ScopeDep, body: dict[str, object] = Body(), eval_run: str | None = None
) -> TrainingCheck:
    config = submit.parse(body, "training").config
    assert isinstance(config, TrainingConfig)
    return service.check(session, scope.workspace, config, eval_run)


@router.post(f"{PREFIX}/{{name}}/resume")
def resume(
    name: str, platform: PlatformDep, session: Writing, scope: ScopeDep, body: RetryRun | None = None
) -> SubmittedRun:
    service.check_machine(platform.settings)
    run = routes.find(session, scope, name)
    run_retry.resume(session, platform.vault, run, scope.user, (body and body.secrets) or {})
    audit.note(session, scope, "run.resume", run.name, workspace=scope.workspace)
    return views.build_accepted(platform.settings, run)


@router.post(f"{PREFIX}/{{name}}/retry")
def retry(
    name: str, platform: PlatformDep, session: Writing, scope: ScopeDep, body: RetryRun | None = None
) -> SubmittedRun:
    service.check_machine(platform.settings)
    run = routes.find(session, scope, name)
    again = run_retry.copy_run(session, platform.vault, run, scope.user, (body and body.secrets) or {})
    audit.note(session, scope, "run.retry", run.name, workspace=scope.workspace, made=again.name)
    return views.build_accepted(platform.settings, again)


@router.get(f"{PREFIX}/{{name}}/metrics")
def metrics(name: str, session: Reading, scope: ScopeDep) -> TrainingMetrics:
    return service.body(session, routes.find(session, scope, name))


@router.get("/api/cli/eval-runs/{name}/trained-rows")
def trained_rows(name: str, session: Reading, scope: ScopeDep) -> TrainedRows:
    run = lifecycle.find(session, scope.workspace, "eval", name)
    return TrainedRows(rows=sorted(service.list_trained_rows(session, run)))


@router.get(f"{PREFIX}/{{name}}/checkpoints")
def checkpoints(name: str, session: Reading, scope: ScopeDep) -> CheckpointList:
    return service.checkpoints(session, routes.find(session, scope, name))
