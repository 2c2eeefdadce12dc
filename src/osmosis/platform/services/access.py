"""Whose token a request carries, and which role that person has where it asks: one statement, at every request.

Nothing of it is kept, so a token that is revoked or has expired, a member who is removed and a role that changes count
at the next request of every process. What is refused, and in which words, `tokens` and `workspaces` say.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from osmosis.platform import tables
from osmosis.platform.db import Database
from osmosis.platform.prepared import PreparedSelect, loaded
from osmosis.platform.security.tokens import hash_token
from osmosis.records.contract.accounts import TokenScope

from . import tokens, workspaces

_TOKEN, _USER, _WORKSPACE, _MEMBER, _REPOSITORY = (
    entity.__table__ for entity in (tables.Token, tables.User, tables.Workspace, tables.Member, tables.Repository)
)
_AFTER_TOKEN = len(_TOKEN.c)
_AFTER_USER = _AFTER_TOKEN + len(_USER.c)
_AFTER_WORKSPACE = _AFTER_USER + len(_WORKSPACE.c)


@dataclass(frozen=True, slots=True)
class Access:
    """A token that is good now, with its person, and their role where it was used."""

    token: tables.Token
    workspace: tables.Workspace
    role: str


def of_token(db: Database, text: str, scope: TokenScope) -> tables.Token:
    """The token's row with its person: `tokens.authenticate` without a session, for this use. Errors as there."""
    token = tokens.checked(_person(_BY_HASH.first(db, hash=hash_token(text))))
    tokens.require_scope(token, scope)
    return token


def in_workspace(db: Database, text: str, scope: TokenScope, *, identity: str | None, name: str | None) -> Access:
    """The same, and the person's role in the workspace that is named, or to which the token is bound.

    Errors are those of `tokens`, of `workspaces.resolve` and of `workspaces.by_id`.
    """
    found = None
    if name and not identity:
        found = _BY_NAME.first(db, hash=hash_token(text), name=name)
    elif identity and not name:
        found = _BY_IDENTITY.first(db, hash=hash_token(text), identity=identity.lower())
    elif not name:
        found = _BOUND.first(db, hash=hash_token(text))
    token = tokens.checked(_person(found)) if found is not None else of_token(db, text, scope)
    tokens.require_scope(token, scope)
    if found is not None:
        workspace, role = loaded(tables.Workspace, found[_AFTER_USER:_AFTER_WORKSPACE]), str(found[-1])
    else:
        workspace, role = _slowly(db, token, identity, name)
    tokens.require_workspace(token, workspace)
    return Access(token, workspace, role)


def first_workspace(db: Database, user: tables.User) -> tuple[tables.Workspace, str] | None:
    """The first of this person's workspaces by name, and their role there; None without any."""
    found = _FIRST.first(db, user_id=user.id)
    return None if found is None else (loaded(tables.Workspace, found[:-1]), str(found[-1]))


def _slowly(db: Database, token: tables.Token, identity: str | None, name: str | None) -> tuple[tables.Workspace, str]:
    """Step by step, to say why there is nothing."""
    with db.read() as session:
        if token.workspace_id is not None and not identity and not name:
            return workspaces.by_id(session, token.user, token.workspace_id)
        return workspaces.resolve(session, token.user, identity=identity, name=name)


def _person(found: list[object] | None) -> tables.Token | None:
    if found is None:
        return None
    token = loaded(tables.Token, found[:_AFTER_TOKEN])
    token.__dict__["user"] = loaded(tables.User, found[_AFTER_TOKEN:_AFTER_USER])
    return token


_BY_HASH = PreparedSelect(
    sa.select(*_TOKEN.c, *_USER.c)
    .join_from(_TOKEN, _USER, _USER.c.id == _TOKEN.c.user_id)
    .where(_TOKEN.c.hash == sa.bindparam("hash"))
)
_PLACED = (
    sa.select(*_TOKEN.c, *_USER.c, *_WORKSPACE.c, _MEMBER.c.role)
    .join_from(_TOKEN, _USER, _USER.c.id == _TOKEN.c.user_id)
    .join(_MEMBER, _MEMBER.c.user_id == _USER.c.id)
    .join(_WORKSPACE, _WORKSPACE.c.id == _MEMBER.c.workspace_id)
    .where(_TOKEN.c.hash == sa.bindparam("hash"))
)
_FIRST = PreparedSelect(
    sa.select(*_WORKSPACE.c, _MEMBER.c.role)
    .join_from(_WORKSPACE, _MEMBER, _MEMBER.c.workspace_id == _WORKSPACE.c.id)
    .where(_MEMBER.c.user_id == sa.bindparam("user_id"))
    .order_by(_WORKSPACE.c.name)
)
_BY_NAME = PreparedSelect(_PLACED.where(_WORKSPACE.c.name == sa.bindparam("name")))
_BOUND = PreparedSelect(_PLACED.where(_WORKSPACE.c.id == _TOKEN.c.workspace_id))
_BY_IDENTITY = PreparedSelect(
    _PLACED.join(_REPOSITORY, _REPOSITORY.c.workspace_id == _WORKSPACE.c.id)
    .where(_REPOSITORY.c.full_name == sa.bindparam("identity"))
    .order_by(_REPOSITORY.c.created_at.desc())
)
