"""People and their tokens: make, check, revoke.

A token is returned once, when it is made; afterwards only its hash is known. Knows nothing of HTTP headers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.errors import AuthRequired, NotFound, ValidationError
from osmosis.platform import tables
from osmosis.platform.security.tokens import hash_token, new_token
from osmosis.records.base import utc_now

TOKEN_DAYS = 90
SESSION_DAYS = 14
TOUCH_EVERY = timedelta(minutes=1)
# Made once: building a statement takes as long as running it, and this one is every request's.
_BY_HASH = sa.select(tables.Token).where(tables.Token.hash == sa.bindparam("hash"))


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A token just made: the only moment its text exists here."""

    text: str
    row: tables.Token
    user: tables.User


def ensure_owner(session: Session, handle: str) -> tables.User:
    """The person who runs this platform; made at the first start."""
    owner = session.scalars(sa.select(tables.User).order_by(tables.User.created_at).limit(1)).first()
    return owner or create_user(session, handle, email=f"{_handle(handle)}@localhost", name=handle)


def create_user(session: Session, handle: str, *, email: str, name: str) -> tables.User:
    """A new person. ValidationError when the handle or the address is taken."""
    handle = _handle(handle)
    taken = sa.or_(tables.User.handle == handle, tables.User.email == email)
    if session.scalars(sa.select(tables.User).where(taken)).first():
        raise ValidationError(f"a user {handle!r} or with the address {email!r} already exists", field="handle")
    user = tables.User(handle=handle, email=email, name=name)
    session.add(user)
    session.flush()
    return user


def issue_token(session: Session, user: tables.User, name: str, *, kind: str = "device") -> IssuedToken:
    """A new credential for this person, valid 90 days (a browser session 14)."""
    text = new_token()
    days = SESSION_DAYS if kind == "session" else TOKEN_DAYS
    row = tables.Token(
        user_id=user.id,
        hash=hash_token(text),
        name=name[:200] or "unnamed",
        kind=kind,
        expires_at=utc_now() + timedelta(days=days),
    )
    session.add(row)
    session.flush()
    return IssuedToken(text, row, user)


def check_token(session: Session, text: str, *, now: datetime | None = None) -> tables.Token:
    """The token's row with its user. AuthRequired with a `code` that says why not."""
    now = now or utc_now()
    row = session.scalars(_BY_HASH, {"hash": hash_token(text)}).first()
    if row is None:
        raise AuthRequired(
            "this platform does not know this token", hint="log in again: osmosis login", code="TOKEN_INVALID"
        )
    if row.revoked_at is not None:
        raise AuthRequired("this token was revoked", hint="log in again: osmosis login", code="TOKEN_REVOKED")
    if row.expires_at is not None and row.expires_at <= now:
        raise AuthRequired("this token has expired", hint="log in again: osmosis login", code="TOKEN_EXPIRED")
    return row


def needs_touch(row: tables.Token, now: datetime) -> bool:
    """Whether `last_used_at` is old enough to be worth a write."""
    return row.last_used_at is None or now - row.last_used_at > TOUCH_EVERY


def touch_token(session: Session, token_id: str) -> None:
    session.execute(sa.update(tables.Token).where(tables.Token.id == token_id).values(last_used_at=utc_now()))


def revoke_token(session: Session, user: tables.User, token_id: str) -> None:
    """Take back one of the person's own tokens; NotFound for another's."""
    row = session.get(tables.Token, token_id)
    if row is None or row.user_id != user.id:
        raise NotFound(f"no token {token_id}")
    row.revoked_at = row.revoked_at or utc_now()


def list_tokens(session: Session, user: tables.User) -> list[tables.Token]:
    """The person's usable tokens, newest first."""
    query = (
        sa.select(tables.Token)
        .where(tables.Token.user_id == user.id, tables.Token.revoked_at.is_(None))
        .order_by(tables.Token.created_at.desc())
    )
    return list(session.scalars(query))


def _handle(text: str) -> str:
    handle = re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-")
    return handle or "local"
