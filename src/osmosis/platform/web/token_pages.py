"""`/tokens`: a person's own tokens, made by name, listed and revoked. The text of a new one is shown once."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Depends, Form, Request, Response

from osmosis.errors import OsmosisError
from osmosis.platform.services import audit, tokens, workspaces
from osmosis.platform.services.tokens import IssuedToken
from osmosis.records.contract.accounts import MAX_TOKEN_DAYS, SCOPES, TOKEN_DAYS, USUAL_SCOPES, NewToken, TokenScope

from .session import Viewer, check_viewer_form, platform_of, viewer
from .templating import PageRoute, page, redirect

router = APIRouter(route_class=PageRoute, include_in_schema=False)
ViewerDep = Annotated[Viewer, Depends(viewer)]


@router.get("/tokens")
def token_list(request: Request, who: ViewerDep) -> Response:
    return _shown(request, who)


def _shown(
    request: Request, who: Viewer, *, made: IssuedToken | None = None, problem: OsmosisError | None = None
) -> Response:
    with platform_of(request).db.read() as session:
        found = tokens.listed(session, who.token)
        names = [row.name for row, _, _ in workspaces.of_user(session, who.user)]
    children = {row.id: sum(1 for other, _ in found if other.parent_id == row.id) for row, _ in found}
    return page(
        request, "tokens.html", who, here="tokens", found=found, children=children, made=made, problem=problem,
        scopes=SCOPES, usual=USUAL_SCOPES, names=names, days=TOKEN_DAYS, most=MAX_TOKEN_DAYS,
        status=problem.http_status if problem else 200,
    )  # fmt: skip


@router.post("/tokens")
def make_token(
    request: Request,
    who: ViewerDep,
    name: Annotated[str, Form(min_length=1, max_length=200)],
    days: Annotated[int, Form(ge=1, le=MAX_TOKEN_DAYS)] = TOKEN_DAYS,
    scope: Annotated[list[TokenScope] | None, Form()] = None,
    only: Annotated[str, Form()] = "",
    csrf: Annotated[str, Form()] = "",
) -> Response:
    check_viewer_form(request, who, csrf)
    seconds = int(timedelta(days=days).total_seconds())
    wish = NewToken(name=name, scopes=scope or list(USUAL_SCOPES), workspace=only or None, expires_in=seconds)
    try:
        with platform_of(request).db.write() as session:
            made = tokens.make(session, who.token, wish)
            audit.note(session, who, "token.create", made.row.name, scopes=made.row.scopes)
    except OsmosisError as problem:
        return _shown(request, who, problem=problem)
    return _shown(request, who, made=made)


@router.post("/tokens/{token_id}/revoke")
def revoke(request: Request, who: ViewerDep, token_id: str, csrf: Annotated[str, Form()] = "") -> Response:
    check_viewer_form(request, who, csrf)
    with platform_of(request).db.write() as session:
        gone = tokens.revoke(session, who.token, token_id)
        audit.note(session, who, "token.revoke", gone.name)
    return redirect("/tokens")
