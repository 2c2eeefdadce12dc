"""`/api/cli/audit`: the audit log of a workspace; `/api/cli/platform/audit`: that of everything."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter

from osmosis.platform import Platform
from osmosis.platform.services import audit
from osmosis.platform.services.paging import PageRange
from osmosis.records.contract.audit_log import AuditPage

from .contract_route import ContractRoute
from .deps import OperatorDep, PlatformDep, Scope, may

router = APIRouter(prefix="/api/cli", route_class=ContractRoute)


@router.get("/audit")
def of_workspace(
    platform: PlatformDep,
    scope: Annotated[Scope, may("audit")],
    limit: int = 50,
    offset: int = 0,
    action: str = "",
    actor: str = "",
) -> AuditPage:
    return _page(platform, PageRange(limit, offset), scope.workspace.id, action, actor)


@router.get("/platform/audit")
def of_platform(
    platform: PlatformDep, caller: OperatorDep, limit: int = 50, offset: int = 0, action: str = "", actor: str = ""
) -> AuditPage:
    return _page(platform, PageRange(limit, offset), None, action, actor)


def _page(platform: Platform, page: PageRange, workspace_id: str | None, action: str, actor: str) -> AuditPage:
    with platform.db.read() as session:
        query = audit.newest_first(workspace_id=workspace_id, action=action, actor=actor)
        rows, total = page.fetch(session, query)
    return AuditPage(entries=[audit.body(row) for row in rows], **page.place(len(rows), total))
