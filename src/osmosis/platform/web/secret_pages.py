"""The secrets of a workspace: names, never a value; set and deleted with a form."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Form, Request, Response

from osmosis.errors import OsmosisError
from osmosis.platform.services import audit, datasets, secrets, workspaces
from osmosis.records.policy import may

from .session import Viewer, check_viewer_form, platform_of, viewer
from .templating import PageRoute, page, redirect

router = APIRouter(route_class=PageRoute, include_in_schema=False)
ViewerDep = Annotated[Viewer, Depends(viewer)]
Text = Annotated[str, Form(max_length=200)]


@router.get("/{workspace}/secrets")
def secret_list(request: Request, who: ViewerDep, workspace: str) -> Response:
    return _secrets(request, who, workspace)


def _secrets(request: Request, who: Viewer, workspace: str, problem: OsmosisError | None = None) -> Response:
    with platform_of(request).db.read() as session:
        row, role = workspaces.by_name(session, who.user, workspace)
        workspaces.require(role, "secrets.own")
        found = list(session.scalars(secrets.visible(row, who.user, "all")))
        people = datasets.creator_names(session, {secret.updater_id for secret in found})
    personal = {secret.name for secret in found if secret.scope == "user"}
    shared = {secret.name for secret in found if secret.scope == "workspace"}
    return page(
        request, "secrets.html", who, here="secrets", workspace=workspace, found=found, people=people,
        shadowed=personal & shared, shared_too=may(role, "secrets.shared"), problem=problem,
        status=problem.http_status if problem else 200,
    )  # fmt: skip


@router.post("/{workspace}/secrets")
def set_secret(
    request: Request,
    who: ViewerDep,
    workspace: str,
    name: Text,
    value: Annotated[str, Form()],
    scope: Text = "user",
    csrf: Text = "",
) -> Response:
    check_viewer_form(request, who, csrf)
    platform = platform_of(request)
    try:
        with platform.db.write() as session:
            row, role = workspaces.by_name(session, who.user, workspace)
            workspaces.require(role, "secrets.own")
            slot = secrets.slot_for(row, who.user, role, scope=scope, name=name.strip())
            secrets.put(session, platform.vault, slot, value, who.user.id)
            audit.note(session, who, "secret.set", slot.name, workspace=row, scope=slot.scope)
    except OsmosisError as problem:
        return _secrets(request, who, workspace, problem)
    return redirect(f"/{workspace}/secrets")


@router.post("/{workspace}/secrets/delete")
def delete_secret(
    request: Request, who: ViewerDep, workspace: str, name: Text, scope: Text = "user", csrf: Text = ""
) -> Response:
    check_viewer_form(request, who, csrf)
    try:
        with platform_of(request).db.write() as session:
            row, role = workspaces.by_name(session, who.user, workspace)
            workspaces.require(role, "secrets.own")
            slot = secrets.slot_for(row, who.user, role, scope=scope, name=name)
            secrets.delete(session, slot)
            audit.note(session, who, "secret.delete", name, workspace=row, scope=slot.scope)
    except OsmosisError as problem:
        return _secrets(request, who, workspace, problem)
    return redirect(f"/{workspace}/secrets")
