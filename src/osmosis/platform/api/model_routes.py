"""`/api/cli/models`, `deployments`, `benchmarks`: what this platform has of them.

Checkpoints of training runs are listed as LoRA models. It serves no inference and has no benchmarks.
"""

from __future__ import annotations

import sqlalchemy as sa
from fastapi import APIRouter
from sqlalchemy.orm import Session

from osmosis.errors import Conflict, NotFound
from osmosis.platform import tables
from osmosis.platform.services.paging import Page
from osmosis.records.contract.body import moment
from osmosis.records.contract.training_bodies import (
    BenchmarkPage,
    BenchmarkRunPage,
    DeploymentPage,
    ModelDeployment,
    ModelPage,
    ModelRow,
)

from .contract_route import ContractRoute
from .deps import PlatformDep, ScopeDep

router = APIRouter(prefix="/api/cli", route_class=ContractRoute)


@router.get("/models/base")
def base_models(scope: ScopeDep, limit: int = 50, offset: int = 0) -> ModelPage:
    return ModelPage(models=[], **Page(limit, offset).place(0, 0))


@router.get("/models/base/{name:path}")
def base_model(name: str, scope: ScopeDep) -> ModelRow:
    raise NotFound(f"no base model named {name!r} on this platform")


@router.get("/models/lora")
def lora_models(platform: PlatformDep, scope: ScopeDep, limit: int = 50, offset: int = 0) -> ModelPage:
    page = Page(limit, offset)
    query = _checkpoints(scope.workspace.id).order_by(tables.Checkpoint.created_at.desc())
    with platform.db.read() as session:
        found, total = page.fetch(session, query)
        shown = [_body(row, session.get_one(tables.Run, row.run_id)) for row in found]
    return ModelPage(models=shown, **page.place(len(shown), total))


def _checkpoints(workspace_id: str) -> sa.Select[tables.Checkpoint]:
    return (
        sa.select(tables.Checkpoint)
        .join(tables.Run, tables.Run.id == tables.Checkpoint.run_id)
        .where(tables.Run.workspace_id == workspace_id)
    )


def _body(row: tables.Checkpoint, run: tables.Run) -> ModelRow:
    return ModelRow(
        id=row.id,
        model_name=row.name,
        base_model=row.base_model,
        training_run_name=run.name,
        checkpoint_step=row.step,
        reward=row.reward,
        created_at=moment(row.created_at),
    )


def _find(session: Session, workspace_id: str, name: str) -> tables.Checkpoint:
    wanted = sa.or_(tables.Checkpoint.name == name, tables.Checkpoint.id == name)
    row: tables.Checkpoint | None = session.scalars(_checkpoints(workspace_id).where(wanted)).first()
    if row is None:
        raise NotFound(f"no model named {name!r}", hint="osmosis model list")
    return row


@router.get("/models/{name}")
def lora_model(name: str, platform: PlatformDep, scope: ScopeDep) -> ModelRow:
    with platform.db.read() as session:
        row = _find(session, scope.workspace.id, name)
        return _body(row, session.get_one(tables.Run, row.run_id))


@router.post("/models/{name}/{action}")
def deploy(name: str, action: str, platform: PlatformDep, scope: ScopeDep) -> ModelDeployment:
    if action not in ("deploy", "undeploy"):
        raise NotFound(f"no such action: {action}")
    with platform.db.read() as session:
        _find(session, scope.workspace.id, name)
    raise Conflict("this platform cannot deploy models: it has no inference service")


@router.get("/deployments")
def deployments(scope: ScopeDep, limit: int = 50, offset: int = 0) -> DeploymentPage:
    return DeploymentPage(deployments=[], **Page(limit, offset).place(0, 0))


@router.get("/benchmarks")
def benchmarks(scope: ScopeDep, limit: int = 50, offset: int = 0) -> BenchmarkPage:
    return BenchmarkPage(benchmarks=[], **Page(limit, offset).place(0, 0))


@router.get("/benchmark-runs")
def benchmark_runs(scope: ScopeDep, limit: int = 50, offset: int = 0) -> BenchmarkRunPage:
    return BenchmarkRunPage(benchmark_runs=[], **Page(limit, offset).place(0, 0))
