"""`/api/cli/quota`: what a workspace has and may have; whoever runs the platform says how much."""

from __future__ import annotations

from fastapi import APIRouter

from osmosis.platform.services import audit, quotas
from osmosis.records.contract.quota import Quota, QuotaUse

from .contract_route import ContractRoute
from .deps import OperatorDep, PlatformDep, ScopeDep

router = APIRouter(prefix="/api/cli", route_class=ContractRoute)


@router.get("/quota")
def show(platform: PlatformDep, scope: ScopeDep) -> QuotaUse:
    with platform.db.read() as session:
        return quotas.used(session, scope.workspace)


@router.put("/workspaces/{name}/quota")
def change(name: str, body: Quota, platform: PlatformDep, caller: OperatorDep) -> QuotaUse:
    """Set what is given; 0 takes a limit away; an empty body only asks."""
    with platform.db.write() as session:
        workspace = quotas.find(session, name)
        given = body.model_dump(exclude_none=True)
        if given:
            quotas.change(workspace, body)
            audit.note(session, caller, "quota.set", name, workspace=workspace, **given)
        return quotas.used(session, workspace)
