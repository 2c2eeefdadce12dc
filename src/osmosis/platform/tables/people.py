"""Who uses the platform and what is theirs: users, logins, workspaces, secrets, rollout servers.

Tokens are stored as hashes, secrets encrypted: a row moved to another owner cannot be decrypted any more
(associated data).
"""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column, relationship

from osmosis.records.base import utc_now

from .base import Base, new_id


class User(Base):
    __tablename__ = "users"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    handle: Mapped[str] = mapped_column(unique=True)
    """Lower-case word: the owner part of internal repositories."""
    email: Mapped[str] = mapped_column(unique=True)
    name: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class Token(Base):
    """A credential; only its SHA-256 is stored."""

    __tablename__ = "tokens"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    user_id: Mapped[str] = mapped_column(sa.ForeignKey("users.id", ondelete="CASCADE"), index=True)
    hash: Mapped[str] = mapped_column(unique=True)
    name: Mapped[str]
    """The device or purpose it was made for."""
    kind: Mapped[str]
    """`device`, `personal` (made by hand) or `session` (a browser)."""
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    expires_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    user: Mapped[User] = relationship(lazy="joined")


class DeviceCode(Base):
    """A login in progress: the client polls with the device code, a person approves the user code."""

    __tablename__ = "device_codes"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    device_hash: Mapped[str] = mapped_column(unique=True)
    user_code: Mapped[str] = mapped_column(unique=True)
    device_name: Mapped[str]
    status: Mapped[str] = mapped_column(default="pending")
    """`pending`, `approved`, `denied` or `used`."""
    user_id: Mapped[str | None] = mapped_column(sa.ForeignKey("users.id", ondelete="CASCADE"))
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    expires_at: Mapped[datetime]
    last_polled_at: Mapped[datetime | None]


class Workspace(Base):
    __tablename__ = "workspaces"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    name: Mapped[str] = mapped_column(unique=True)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class Member(Base):
    __tablename__ = "members"

    workspace_id: Mapped[str] = mapped_column(sa.ForeignKey("workspaces.id", ondelete="CASCADE"), primary_key=True)
    user_id: Mapped[str] = mapped_column(sa.ForeignKey("users.id", ondelete="CASCADE"), primary_key=True, index=True)
    role: Mapped[str] = mapped_column(default="member")
    """`owner`, `admin` or `member`."""
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class Secret(Base):
    __tablename__ = "secrets"
    __table_args__ = (sa.UniqueConstraint("workspace_id", "scope", "owner_id", "name"),)

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    workspace_id: Mapped[str] = mapped_column(sa.ForeignKey("workspaces.id", ondelete="CASCADE"), index=True)
    scope: Mapped[str]
    """`workspace`, `user`, or `run` for a value given with one run only."""
    owner_id: Mapped[str]
    """Id of the workspace, the user or the run, by scope."""
    name: Mapped[str]
    version: Mapped[int] = mapped_column(default=1)
    key_id: Mapped[str]
    nonce: Mapped[bytes]
    ciphertext: Mapped[bytes]
    creator_id: Mapped[str | None] = mapped_column(sa.ForeignKey("users.id", ondelete="SET NULL"))
    updater_id: Mapped[str | None] = mapped_column(sa.ForeignKey("users.id", ondelete="SET NULL"))
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    updated_at: Mapped[datetime] = mapped_column(default=utc_now)
    last_used_at: Mapped[datetime | None]
    last_used_by: Mapped[str | None]
    """Name of the run whose job was last given the value."""


class RolloutServer(Base):
    __tablename__ = "rollout_servers"
    __table_args__ = (sa.UniqueConstraint("owner_id", "host", "port"),)

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    """One registration; a server that registers again gets another one."""
    workspace_id: Mapped[str | None] = mapped_column(sa.ForeignKey("workspaces.id", ondelete="SET NULL"), index=True)
    """None: known to its owner only."""
    owner_id: Mapped[str] = mapped_column(sa.ForeignKey("users.id", ondelete="CASCADE"))
    host: Mapped[str]
    port: Mapped[int]
    agent_loop_name: Mapped[str]
    key_id: Mapped[str | None]
    """This and the next two: the server's own API key, sealed; all None when it has none."""
    nonce: Mapped[bytes | None]
    ciphertext: Mapped[bytes | None]
    status: Mapped[str]
    """`healthy` or `unhealthy`, as last checked; what is shown also depends on `last_seen`."""
    error: Mapped[str | None] = mapped_column(sa.Text)
    """Why it is unhealthy."""
    last_seen: Mapped[datetime] = mapped_column(default=utc_now, index=True)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
