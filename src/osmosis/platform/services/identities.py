"""Who somebody is here that an OpenID Connect provider signed in: known, linked by their address, invited, or made new.

The provider's issuer and subject are what somebody is known by, once they are linked; addresses change hands. A
verified address links to an existing person or opens an invitation; one that is not verified does neither.
"""

from __future__ import annotations

import re
from typing import Literal

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.errors import Conflict, Forbidden
from osmosis.platform import tables
from osmosis.platform.db import changed_by
from osmosis.records.base import utc_now
from osmosis.records.sign_in import Identity, OpenIdSettings

from . import users

How = Literal["known", "linked", "added"]
MAX_HANDLE = 50


def sign_in(session: Session, settings: OpenIdSettings, identity: Identity) -> tuple[tables.User, How]:
    """The person. Forbidden for somebody whom nothing lets in, Conflict for an address that is another account's."""
    known = session.get(tables.LinkedIdentity, (identity.issuer, identity.subject))
    if known is not None:
        known.last_used_at = utc_now()
        return session.get_one(tables.User, known.user_id), "known"
    _check_address(settings, identity)
    user = session.scalars(sa.select(tables.User).where(tables.User.email == identity.email)).first()
    how: How = "linked"
    if user is not None:
        _check_free(session, user, identity)
    else:
        _check_welcome(session, settings, identity)
        handle = _free_handle(session, identity)
        user = users.create_user(session, handle, email=identity.email, name=identity.name or handle)
        how = "added"
    link = tables.LinkedIdentity(
        issuer=identity.issuer, subject=identity.subject, user_id=user.id, email=identity.email
    )
    session.add(link)
    session.flush()
    return user, how


def unlink(session: Session, user: tables.User) -> int:
    """Forget which accounts at a provider are this person's; how many there were. Their sessions go on."""
    return changed_by(session, sa.delete(tables.LinkedIdentity).where(tables.LinkedIdentity.user_id == user.id))


def _check_address(settings: OpenIdSettings, identity: Identity) -> None:
    if not identity.email:
        raise Forbidden(
            f"{settings.name} does not share your e-mail address, and nobody here is linked to your account there",
            hint="an operator of this platform adds `email` to OSMOSIS_OIDC_SCOPES, or sends you a login link",
            code="EMAIL_MISSING",
        )
    if not identity.verified:
        raise Forbidden(
            f"{settings.name} has not verified that {identity.email} is yours",
            hint="verify your address there, then log in again",
            code="EMAIL_UNVERIFIED",
        )


def _check_free(session: Session, user: tables.User, identity: Identity) -> None:
    """An address may have been given to somebody else since: who is linked already is not linked again."""
    query = sa.select(tables.LinkedIdentity).where(
        tables.LinkedIdentity.user_id == user.id, tables.LinkedIdentity.issuer == identity.issuer
    )
    if session.scalars(query).first() is not None:
        raise Conflict(
            f"{identity.email} belongs to {user.handle}, who signs in with another account of the same provider",
            hint=f"for the same person, an operator of this platform types: osmosis platform user unlink {user.handle}",
            code="IDENTITY_TAKEN",
        )


def _check_welcome(session: Session, settings: OpenIdSettings, identity: Identity) -> None:
    invited = sa.select(tables.Invitation).where(tables.Invitation.email == identity.email)
    if session.scalars(invited).first() is not None:
        return
    rules = [
        *([identity.domain in settings.domains] if settings.domains else []),
        *([bool(identity.groups & set(settings.groups))] if settings.groups else []),
    ]
    if not rules or not all(rules):
        raise Forbidden(
            f"nobody has invited {identity.email} to this platform",
            hint=f"ask an owner or admin of a workspace for: osmosis workspace invite {identity.email}",
            code="NOT_INVITED",
        )


def _free_handle(session: Session, identity: Identity) -> str:
    """A handle that nobody has, after what the provider calls them or their address."""
    wanted = identity.handle or identity.email.partition("@")[0]
    stem = re.sub(r"[^a-z0-9-]+", "-", wanted.lower()).strip("-")[:MAX_HANDLE] or "person"
    query = sa.select(tables.User.handle).where(tables.User.handle.startswith(stem, autoescape=True))
    taken = set(session.scalars(query))
    number = 1
    while (handle := stem if number == 1 else f"{stem}-{number}") in taken:
        number += 1
    return handle
