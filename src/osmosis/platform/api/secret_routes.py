"""`/api/cli/environment-secrets`: names and scopes; values only ever come in."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Response
from sqlalchemy.orm import Session

from osmosis.platform import tables
from osmosis.platform.services import audit, datasets, links, secrets
from osmosis.platform.services.paging import PageRange
from osmosis.records.contract.secret import NewSecret, SecretName, SecretPage, SecretRow

from .contract_route import ContractRoute
from .deps import PlatformDep, Scope, may

router = APIRouter(prefix="/api/cli/environment-secrets", route_class=ContractRoute)
SecretsDep = Annotated[Scope, may("secrets.own")]


def _users(session: Session, rows: list[tables.Secret]) -> dict[str | None, tables.User]:
    return datasets.creator_names(session, {user for row in rows for user in (row.creator_id, row.updater_id)})


@router.get("")
def list_secrets(
    platform: PlatformDep, caller: SecretsDep, limit: int = 50, offset: int = 0, scope: str = "all"
) -> SecretPage:
    page = PageRange(limit, offset)
    with platform.db.read() as session:
        rows, total = page.fetch(session, secrets.visible(caller.workspace, caller.user, scope))
        users = _users(session, rows)
    url = links.secrets(platform.settings, caller.workspace.name)
    shown = [secrets.body(row, users) for row in rows]
    return SecretPage(environment_secrets=shown, platform_url=url, **page.place(len(shown), total))


@router.post("")
def put(body: NewSecret, platform: PlatformDep, caller: SecretsDep) -> SecretRow:
    with platform.db.write() as session:
        slot = secrets.slot_for(caller.workspace, caller.user, caller.role, scope=body.scope, name=body.name)
        row = secrets.put(session, platform.vault, slot, body.value, caller.user.id)
        audit.note(session, caller, "secret.set", body.name, workspace=caller.workspace, scope=slot.scope)
        users = _users(session, [row])
    url = links.secrets(platform.settings, caller.workspace.name)
    return secrets.body(row, users).model_copy(update={"platform_url": url})


@router.delete("", status_code=204)
def delete(body: SecretName, platform: PlatformDep, caller: SecretsDep) -> Response:
    with platform.db.write() as session:
        slot = secrets.slot_for(caller.workspace, caller.user, caller.role, scope=body.scope, name=body.name)
        secrets.delete(session, slot)
        audit.note(session, caller, "secret.delete", body.name, workspace=caller.workspace, scope=slot.scope)
    return Response(status_code=204)
