"""Tokens, stored as SHA-256 of 256 random bits. What is made with a token made by name (`personal`) may do no more,
lives no longer and is revoked with it; a session belongs to whoever opened it."""

import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.base.files import find_full_disk
from osmosis.errors import AuthRequired, Forbidden, NotFound
from osmosis.platform import tables
from osmosis.platform.db import Database
from osmosis.platform.workspaces import service as workspaces
from osmosis.records.api.accounts import SCOPES, TOKEN_DAYS, USUAL_SCOPES, NewToken, TokenScope, may
from osmosis.records.base import utc_now

TokenKind = Literal["device", "session", "personal"]
SESSION_DAYS = 14
TOUCH_EVERY = timedelta(minutes=1)
_USUAL: dict[TokenKind, tuple[TokenScope, ...]] = {
    "device": ("api", "git", "inference"),
    "session": ("api",),
    "personal": USUAL_SCOPES,
}


@dataclass(frozen=True, slots=True)
class IssuedToken:
    text: str
    row: tables.Token
    user: tables.User


# Built once: it is asked at every request, and building it costs as much as asking.
_BY_HASH = sa.select(tables.Token).where(tables.Token.hash == sa.bindparam("hash"))


def authenticate(session: Session, text: str, *, now: datetime | None = None) -> tables.Token:
    row = session.scalars(_BY_HASH, {"hash": hash_token(text)}).first()
    if row is None:
        message = "this platform does not know this token"
        raise AuthRequired(message, hint="log in again: osmosis login", code="TOKEN_INVALID")
    if row.revoked_at is not None:
        raise AuthRequired("this token was revoked", hint="log in again: osmosis login", code="TOKEN_REVOKED")
    if row.expires_at is not None and row.expires_at <= (now or utc_now()):
        raise AuthRequired("this token has expired", hint="log in again: osmosis login", code="TOKEN_EXPIRED")
    return row


def require_scope(token: tables.Token, scope: TokenScope) -> None:
    if scope not in scopes_of(token):
        message = f"this token has the scopes {', '.join(token.scopes.split())}; this needs {scope}"
        hint = f"make one that has it: osmosis token create NAME --scope {scope}"
        raise Forbidden(message, hint=hint, code="TOKEN_SCOPE_MISSING")


def require_unbound(token: tables.Token) -> None:
    if token.workspace_id is not None:
        message = "this token is valid for one workspace only; this request is about your account"
        raise Forbidden(message, hint="use a login: osmosis login", code="TOKEN_WORKSPACE")


def require_workspace(token: tables.Token, workspace: tables.Workspace) -> None:
    if token.workspace_id not in (None, workspace.id):
        hint = f"make one for it: osmosis token create NAME --workspace {workspace.name}"
        message = f"this token is valid for another workspace, not for {workspace.name!r}"
        raise Forbidden(message, hint=hint, code="TOKEN_WORKSPACE")


def require_operator(session: Session, token: tables.Token) -> None:
    """Raise Forbidden unless an operator asks with a login: a token made by name may be shared."""
    if not is_operator(session, token):
        message = "only an operator of this platform may do this, and only with a login"
        raise Forbidden(message, hint="on its machine: osmosis login", code="OPERATOR_NEEDED")


def is_operator(session: Session, token: tables.Token) -> bool:
    return token.user.operator and _bound(session, token) is None


def scopes_of(token: tables.Token) -> frozenset[str]:
    return frozenset(token.scopes.split())


def touch(db: Database, token: tables.Token) -> None:
    now = utc_now()
    if token.last_used_at is None or now - token.last_used_at > TOUCH_EVERY:
        try:
            with db.write() as session:
                session.execute(sa.update(tables.Token).where(tables.Token.id == token.id).values(last_used_at=now))
        except sa.exc.OperationalError as error:
            if find_full_disk(error, where="the platform") is None:
                raise
            # who only looks is served on a full disk, too


def issue(
    session: Session,
    user: tables.User,
    name: str,
    *,
    kind: TokenKind = "device",
    scopes: Iterable[TokenScope] | None = None,
    workspace_id: str | None = None,
    lifetime: timedelta | None = None,
    maker: tables.Token | None = None,
) -> IssuedToken:
    """Create a token; the bounds of `maker`, the token that asked, hold for it (None: they proved who they are)."""
    allowed = set(_USUAL[kind] if scopes is None else scopes)
    ends = utc_now() + (lifetime or timedelta(days=SESSION_DAYS if kind == "session" else TOKEN_DAYS))
    bound = _bound(session, maker)
    if bound is not None:
        if scopes is None:
            allowed &= scopes_of(bound)
        for scope in allowed:
            require_scope(bound, scope)
        if bound.workspace_id is not None:
            if kind != "personal" or workspace_id not in (None, bound.workspace_id):
                require_unbound(bound)
            workspace_id = bound.workspace_id
        ends = min(ends, bound.expires_at or ends)
    text = new_token()
    row = tables.Token(
        user_id=user.id,
        hash=hash_token(text),
        name=name[:200] or "unnamed",
        kind=kind,
        scopes=" ".join(scope for scope in SCOPES if scope in allowed),
        workspace_id=workspace_id,
        parent_id=maker and (maker.parent_id if maker.kind == "session" else maker.id),
        expires_at=ends,
    )
    session.add(row)
    session.flush()
    return IssuedToken(text, row, user)


def create_named(session: Session, maker: tables.Token, wish: NewToken) -> IssuedToken:
    workspace, role = None, None
    if wish.workspace is not None:
        workspace, role = workspaces.by_name(session, maker.user, wish.workspace)
    if "worker" in wish.scopes:
        _require_worker_maker(maker.user, role)
    return issue(
        session,
        maker.user,
        wish.name,
        kind="personal",
        scopes=wish.scopes,
        workspace_id=workspace.id if workspace is not None else None,
        lifetime=timedelta(seconds=wish.expires_in) if wish.expires_in is not None else None,
        maker=maker,
    )


def require_worker(session: Session, token: tables.Token) -> None:
    """Raise Forbidden unless the person could still make this token: roles change."""
    role = workspaces.role_of(session, token.user_id, token.workspace_id) if token.workspace_id else None
    _require_worker_maker(token.user, role)


def _require_worker_maker(user: tables.User, role: str | None) -> None:
    if not user.operator and (role is None or not may(role, "workers")):
        raise Forbidden(
            "a worker gets code and secrets of the runs it takes: a token for all workspaces is made by an operator of "
            "the platform, one for a single workspace by its owners and admins",
            hint="osmosis token create NAME --scope worker --workspace WORKSPACE",
        )


def list_tokens(session: Session, asker: tables.Token) -> list[tuple[tables.Token, str | None]]:
    """List the person's usable tokens, newest first; one made by name sees itself and what was made with it."""
    table = tables.Token
    query = sa.select(table, tables.Workspace.name).outerjoin(table.workspace)
    query = query.where(table.user_id == asker.user_id, table.revoked_at.is_(None))
    query = query.where(sa.or_(table.expires_at.is_(None), table.expires_at > utc_now()))
    query = query.order_by(table.created_at.desc(), table.id)
    if (bound := _bound(session, asker)) is not None:
        query = query.where(tables.Token.id.in_(_family(bound.id)))
    return [(token, workspace) for token, workspace in session.execute(query)]


def revoke(session: Session, asker: tables.Token, token_id: str, *, logout: bool = False) -> tables.Token:
    """Revoke the person's token and what was made with it; a `logout` keeps tokens made by name."""
    row = session.get(tables.Token, token_id)
    bound = _bound(session, asker)
    family = session.scalars(_family(bound.id)).all() if bound is not None else ()
    if row is None or row.user_id != asker.user_id or (bound is not None and row.id not in family):
        raise NotFound(f"no token {token_id}", hint="osmosis token list")
    if logout:
        children = sa.update(tables.Token).where(tables.Token.parent_id == row.id, tables.Token.kind == "personal")
        session.execute(children.values(parent_id=row.parent_id))
    ended = sa.update(tables.Token).where(tables.Token.id.in_(_family(row.id)), tables.Token.revoked_at.is_(None))
    session.execute(ended.values(revoked_at=utc_now()))
    return row


def _family(token_id: str) -> sa.Select[str]:
    tree = sa.select(tables.Token.id).where(tables.Token.id == token_id).cte("family", recursive=True)
    tree = tree.union(sa.select(tables.Token.id).join(tree, tables.Token.parent_id == tree.c.id))
    return sa.select(tree.c.id)


def _bound(session: Session, token: tables.Token | None) -> tables.Token | None:
    """Return the nearest token made by name among this one and those it was made with: its bounds hold."""
    while token is not None and token.kind != "personal":
        token = session.get(tables.Token, token.parent_id) if token.parent_id else None
    return token


PREFIX = "osm_"
JOB_PREFIX = "osj_"
TICKET_PREFIX = "ost_"


def new_token(prefix: str = PREFIX) -> str:
    return prefix + secrets.token_urlsafe(32)


def hash_token(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
