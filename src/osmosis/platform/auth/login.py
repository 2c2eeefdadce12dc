"""Logins of terminals by the device flow, and of the owner by the bootstrap token. A code works once."""

import hmac
import secrets
from dataclasses import dataclass
from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.base.files import write_text
from osmosis.errors import AuthRequired, Conflict, NotFound, ValidationError
from osmosis.platform import Platform, tables
from osmosis.platform.auth import tokens, users
from osmosis.records.base import utc_now

LIFETIME_S = 900
INTERVAL_S = 2
BOOTSTRAP_FILE = "bootstrap.token"
ALPHABET = "BCDFGHJKLMNPQRSTVWXZ23456789"


@dataclass(frozen=True, slots=True)
class DeviceLogin:
    device_code: str
    user_code: str
    expires_in: int = LIFETIME_S
    interval: int = INTERVAL_S


def start(session: Session, device_name: str, *, lifetime_s: int = LIFETIME_S) -> DeviceLogin:
    now = utc_now()
    session.execute(sa.delete(tables.DeviceCode).where(tables.DeviceCode.expires_at < now - timedelta(days=1)))
    word = "".join(secrets.choice(ALPHABET) for _ in range(8))
    login = DeviceLogin(tokens.new_token("osd_"), f"{word[:4]}-{word[4:]}", lifetime_s)
    session.add(
        tables.DeviceCode(
            device_hash=tokens.hash_token(login.device_code),
            user_code=login.user_code,
            device_name=device_name[:200] or "unnamed device",
            expires_at=now + timedelta(seconds=lifetime_s),
        )
    )
    return login


def link_for(session: Session, person: tables.User, maker: tables.Token, *, hours: int = 24) -> DeviceLogin:
    """Start a login for somebody else that needs no approval and ends when the operator's `maker` is revoked."""
    login = start(session, "login link", lifetime_s=hours * 3600)
    session.flush()
    row = find(session, login.user_code)
    row.status, row.user_id, row.maker_id = "approved", person.id, maker.id
    return login


def whose(session: Session, device_code: str) -> tables.User | None:
    query = sa.select(tables.DeviceCode).where(tables.DeviceCode.device_hash == tokens.hash_token(device_code))
    row = session.scalars(query).first()
    if row is None or row.status != "approved" or row.expires_at <= utc_now() or row.user_id is None:
        return None
    return session.get(tables.User, row.user_id)


def find(session: Session, user_code: str) -> tables.DeviceCode:
    code = user_code.strip().upper()
    row = session.scalars(sa.select(tables.DeviceCode).where(tables.DeviceCode.user_code == code)).first()
    if row is None or row.expires_at <= utc_now():
        raise NotFound(f"no pending login has the code {code!r}", hint="start again: osmosis login")
    return row


def decide(
    session: Session, user_code: str, user: tables.User, *, approve: bool, maker: tables.Token | None = None
) -> tables.DeviceCode:
    if maker is not None:
        tokens.require_unbound(maker)
    row = find(session, user_code)
    if row.status != "pending":
        raise Conflict(f"this login was already {row.status}", hint="start again: osmosis login")
    row.status = "approved" if approve else "denied"
    row.user_id = user.id if approve else None
    row.maker_id = maker.id if maker is not None else None
    return row


def poll(session: Session, device_code: str, *, browser: str = "") -> tokens.IssuedToken | str:
    """Return the token once approved, else the reason as a word of the device flow. `browser` gets a session."""
    query = sa.select(tables.DeviceCode).where(tables.DeviceCode.device_hash == tokens.hash_token(device_code))
    row = session.scalars(query.with_for_update()).first()
    if row is None:
        raise ValidationError("unknown device code", hint="start again: osmosis login", error_code="expired_token")
    now = utc_now()
    if row.expires_at <= now or row.status == "used":
        return "expired_token"
    if row.status == "denied":
        return "access_denied"
    if row.status == "pending":
        early = row.last_polled_at is not None and now - row.last_polled_at < timedelta(seconds=INTERVAL_S / 2)
        row.last_polled_at = now
        return "slow_down" if early else "authorization_pending"
    user = session.get(tables.User, row.user_id)
    maker = session.get(tables.Token, row.maker_id) if row.maker_id else None
    if user is None or (maker is not None and maker.revoked_at is not None):
        return "access_denied"
    row.status = "used"
    if maker is not None and maker.user_id != user.id:
        maker = None  # made for another person: what they do with it is theirs
    return tokens.issue(session, user, browser or row.device_name, kind="session" if browser else "device", maker=maker)


def prepare(platform: Platform) -> None:
    with platform.db.write() as session:
        users.ensure_owner(session, platform.settings.owner_name)
    path = platform.settings.data_dir / BOOTSTRAP_FILE
    if not path.exists():
        write_text(path, tokens.new_token("osb_") + "\n", mode=0o600)


def check_bootstrap(platform: Platform, token: str) -> None:
    path = platform.settings.data_dir / BOOTSTRAP_FILE
    stored = path.read_text().strip() if path.exists() else ""
    if not stored or not hmac.compare_digest(stored.encode(), token.encode()):
        raise AuthRequired("this is not the bootstrap token of this platform", code="TOKEN_INVALID")
