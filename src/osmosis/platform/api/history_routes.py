"""`/api/cli/history`: a row, or a figure, over the runs of a workspace."""

from __future__ import annotations

from fastapi import APIRouter

from osmosis.platform.viewing.run_source import DatabaseLibrary
from osmosis.records.history import History
from osmosis.viewer.over_runs import HistoryWanted, history

from .contract_route import ContractRoute
from .deps import PlatformDep, ScopeDep

router = APIRouter(prefix="/api/cli", route_class=ContractRoute)


@router.get("/history")
def show(
    platform: PlatformDep,
    scope: ScopeDep,
    row: str = "",
    metric: str = "",
    rollout: str = "",
    model: str = "",
    dataset: str = "",
    tag: str = "",
    baseline: str = "",
) -> History:
    """The newest runs that fit, the oldest first; `row` is the key of a row."""
    wanted = HistoryWanted(row, metric, rollout, model, dataset, tag, baseline)
    with platform.db.read() as session:
        return history(DatabaseLibrary(session, platform, scope, scope.workspace), wanted)
