"""Links by which anybody may read one run until they expire or are revoked. Only the hash of a token is stored."""

import secrets
from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.errors import NotFound
from osmosis.platform import tables
from osmosis.platform.auth.tokens import hash_token
from osmosis.platform.settings import PlatformSettings
from osmosis.platform.workspaces import audit
from osmosis.records.base import utc_now


def create(
    session: Session,
    settings: PlatformSettings,
    actor: audit.Actor,
    workspace: tables.Workspace,
    run: tables.Run,
    lifetime_s: int,
) -> tuple[tables.ShareLink, str]:
    token, ends = secrets.token_urlsafe(32), utc_now() + timedelta(seconds=lifetime_s)
    link = tables.ShareLink(run_id=run.id, creator_id=actor.user.id, hash=hash_token(token), expires_at=ends)
    session.add(link)
    expired = sa.delete(tables.ShareLink).where(tables.ShareLink.run_id == run.id)
    session.execute(expired.where(tables.ShareLink.expires_at < utc_now()))
    audit.note(session, actor, "run.share", run.name, workspace=workspace, until=ends.isoformat(timespec="minutes"))
    return link, f"{settings.url}/shared/{token}"


def list_valid(session: Session, run: tables.Run) -> list[tables.ShareLink]:
    links = sa.select(tables.ShareLink).filter_by(run_id=run.id).where(tables.ShareLink.expires_at > utc_now())
    return list(session.scalars(links.order_by(tables.ShareLink.expires_at)))


def revoke(session: Session, actor: audit.Actor, workspace: tables.Workspace, run: tables.Run, link_id: str) -> None:
    link = session.get(tables.ShareLink, link_id)
    if link is None or link.run_id != run.id:
        raise NotFound(f"{run.name} has no link {link_id}", hint=f"osmosis eval share {run.name} --list")
    session.delete(link)
    audit.note(session, actor, "run.unshare", run.name, workspace=workspace)


def find(session: Session, token: str) -> tables.ShareLink:
    link = session.scalars(sa.select(tables.ShareLink).where(tables.ShareLink.hash == hash_token(token))).first()
    if link is None or link.expires_at <= utc_now():
        reason = "it has expired" if link else "it was revoked, has expired, or is not complete"
        raise NotFound(f"this link does not work: {reason}", hint="ask who sent it for a new one")
    return link
