"""`/api/cli/models`: base models of the store, trained ones (the checkpoints of runs), and benchmarks, of which there
are none here.
"""

from __future__ import annotations

import sqlalchemy as sa
from fastapi import APIRouter, Response

from osmosis.platform import tables
from osmosis.platform.services import audit, deployments, merging, models
from osmosis.platform.services.paging import PageRange
from osmosis.platform.slow_work import slow
from osmosis.records.contract.training_bodies import (
    BenchmarkPage,
    BenchmarkRunPage,
    ModelPage,
    ModelRow,
)

from .contract_route import ContractRoute
from .deps import PlatformDep, ScopeDep

router = APIRouter(prefix="/api/cli", route_class=ContractRoute)


@router.get("/models/base")
def base_models(platform: PlatformDep, scope: ScopeDep, limit: int = 50, offset: int = 0) -> ModelPage:
    page = PageRange(limit, offset)
    query = sa.select(tables.BaseModel).where(tables.BaseModel.workspace_id == scope.workspace.id)
    with platform.db.read() as session:
        found, total = page.fetch(session, query.order_by(tables.BaseModel.created_at.desc()))
        shown = deployments.rows(session, platform.settings, scope.workspace.id, map(models.base_row, found))
    return ModelPage(models=shown, **page.place(len(shown), total))


@router.get("/models/base/{name:path}")
def base_model(name: str, platform: PlatformDep, scope: ScopeDep) -> ModelRow:
    with platform.db.read() as session:
        row = models.base_row(models.find_base(session, scope.workspace, name))
        return deployments.rows(session, platform.settings, scope.workspace.id, [row])[0]


@router.delete("/models/base/{name}", status_code=204)
@slow("objects")
def delete_base(name: str, platform: PlatformDep, scope: ScopeDep) -> Response:
    with platform.db.write() as session:
        model = models.find_base(session, scope.workspace, name)
        models.delete_base(session, model)
        merging.forget(session, model)
        audit.note(session, scope, "model.delete", model.name, workspace=scope.workspace)
    models.delete_files(platform, models.key_of(model.id), models.uploads_key(model.id))
    platform.objects.delete(f"runs/{model.id}/")  # of the merge that it came of
    return Response(status_code=204)


@router.get("/models/lora")
def lora_models(platform: PlatformDep, scope: ScopeDep, limit: int = 50, offset: int = 0) -> ModelPage:
    page = PageRange(limit, offset)
    query = models.trained(scope.workspace.id).order_by(tables.Checkpoint.created_at.desc())
    with platform.db.read() as session:
        found, total = page.fetch(session, query)
        bare = [models.trained_row(row, session.get_one(tables.Run, row.run_id)) for row in found]
        shown = deployments.rows(session, platform.settings, scope.workspace.id, bare)
        room = deployments.room(session, platform.settings)
    return ModelPage(models=shown, **room, **page.place(len(shown), total))


@router.get("/models/{name}")
def lora_model(name: str, platform: PlatformDep, scope: ScopeDep) -> ModelRow:
    with platform.db.read() as session:
        row = models.find_trained(session, scope.workspace.id, name)
        bare = models.trained_row(row, session.get_one(tables.Run, row.run_id))
        return deployments.rows(session, platform.settings, scope.workspace.id, [bare])[0]


@router.delete("/models/{name}", status_code=204)
@slow("objects")
def delete_lora(name: str, platform: PlatformDep, scope: ScopeDep) -> Response:
    with platform.db.write() as session:
        row = models.find_trained(session, scope.workspace.id, name)
        models.delete_trained(session, row)
        audit.note(session, scope, "model.delete", row.name, workspace=scope.workspace)
    models.delete_files(platform, row.path)
    return Response(status_code=204)


@router.get("/benchmarks")
def benchmarks(scope: ScopeDep, limit: int = 50, offset: int = 0) -> BenchmarkPage:
    return BenchmarkPage(benchmarks=[], **PageRange(limit, offset).place(0, 0))


@router.get("/benchmark-runs")
def benchmark_runs(scope: ScopeDep, limit: int = 50, offset: int = 0) -> BenchmarkRunPage:
    return BenchmarkRunPage(benchmark_runs=[], **PageRange(limit, offset).place(0, 0))
