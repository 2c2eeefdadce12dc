"""Who uses the platform and what is theirs: users, logins, workspaces, secrets, rollout servers.

Tokens are stored as hashes, secrets encrypted: a row moved to another owner cannot be decrypted any more
(associated data).
"""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column, relationship

from osmosis.records.base import utc_now

from .base import Base, Json, new_id


class User(Base):
    __tablename__ = "users"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    handle: Mapped[str] = mapped_column(unique=True)
    """Lower-case word: the owner part of internal repositories."""
    email: Mapped[str] = mapped_column(unique=True)
    name: Mapped[str]
    operator: Mapped[bool] = mapped_column(default=False)
    """Whether this person runs the platform: adds and removes people, and may what touches its machine."""
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class LinkedIdentity(Base):
    """An account at an OpenID Connect provider, and whose it is here."""

    __tablename__ = "identities"

    issuer: Mapped[str] = mapped_column(primary_key=True)
    subject: Mapped[str] = mapped_column(primary_key=True)
    """What the issuer calls them, for ever."""
    user_id: Mapped[str] = mapped_column(sa.ForeignKey("users.id", ondelete="CASCADE"), index=True)
    email: Mapped[str]
    """The address by which they were linked."""
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    last_used_at: Mapped[datetime] = mapped_column(default=utc_now)


class Token(Base):
    """A credential of any kind; only its SHA-256 is stored. What the columns mean together: `services.tokens`."""

    __tablename__ = "tokens"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    user_id: Mapped[str] = mapped_column(sa.ForeignKey("users.id", ondelete="CASCADE"), index=True)
    hash: Mapped[str] = mapped_column(unique=True)
    name: Mapped[str]
    """The device or purpose it was made for."""
    kind: Mapped[str]
    """`device` or `session` (a terminal or a browser that logged in), or `personal` (made by name)."""
    scopes: Mapped[str]
    """What it may be used for, separated by blanks: `api`, `git`, `worker`, `inference`."""
    workspace_id: Mapped[str | None] = mapped_column(sa.ForeignKey("workspaces.id", ondelete="CASCADE"), index=True)
    """The only workspace it is good for; None for all of the person's."""
    parent_id: Mapped[str | None] = mapped_column(sa.ForeignKey("tokens.id", ondelete="SET NULL"), index=True)
    """The token it was made with, whose revocation revokes it."""
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
    maker_id: Mapped[str | None] = mapped_column(sa.ForeignKey("tokens.id", ondelete="CASCADE"))
    """The token with which it was approved."""
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    expires_at: Mapped[datetime]
    last_polled_at: Mapped[datetime | None]


class Workspace(Base):
    __tablename__ = "workspaces"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    name: Mapped[str] = mapped_column(unique=True)
    max_runs: Mapped[int | None]
    """This and the six below: its quotas (`services.quotas`); None: no limit."""
    max_rollouts: Mapped[int | None]
    max_cpus: Mapped[float | None]
    max_memory_mb: Mapped[int | None]
    max_gpus: Mapped[int | None]
    max_datasets: Mapped[int | None]
    max_bytes: Mapped[int | None] = mapped_column(sa.BigInteger)
    served_at: Mapped[datetime | None]
    """When a job of it was last given out: among workspaces the one that waits longest comes first."""
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class Member(Base):
    __tablename__ = "members"

    workspace_id: Mapped[str] = mapped_column(sa.ForeignKey("workspaces.id", ondelete="CASCADE"), primary_key=True)
    user_id: Mapped[str] = mapped_column(sa.ForeignKey("users.id", ondelete="CASCADE"), primary_key=True, index=True)
    role: Mapped[str] = mapped_column(default="member")
    """records.policy.Role."""
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class Invitation(Base):
    """A role that waits for somebody who has no account yet, by their address."""

    __tablename__ = "invitations"

    workspace_id: Mapped[str] = mapped_column(sa.ForeignKey("workspaces.id", ondelete="CASCADE"), primary_key=True)
    email: Mapped[str] = mapped_column(primary_key=True, index=True)
    """Lower-case."""
    role: Mapped[str]
    inviter_id: Mapped[str | None] = mapped_column(sa.ForeignKey("users.id", ondelete="SET NULL"))
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class AuditEntry(Base):
    """A change, in words that outlive whom and what they name."""

    __tablename__ = "audit_log"
    __table_args__ = (sa.Index("ix_audit_log_workspace_id_id", "workspace_id", "id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    timestamp: Mapped[datetime] = mapped_column(default=utc_now, index=True)
    workspace_id: Mapped[str | None] = mapped_column(sa.ForeignKey("workspaces.id", ondelete="SET NULL"))
    actor_id: Mapped[str | None] = mapped_column(sa.ForeignKey("users.id", ondelete="SET NULL"), index=True)
    actor: Mapped[str]
    """Their handle then."""
    token: Mapped[str]
    """Kind and name of the credential they used."""
    address: Mapped[str]
    action: Mapped[str]
    """`noun.verb`."""
    target: Mapped[str] = mapped_column(sa.Text)
    details: Mapped[dict[str, object] | None] = mapped_column(Json)


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

    @property
    def about(self) -> str:
        """What its value is bound to: with any of these changed it cannot be decrypted."""
        return f"{self.workspace_id}|{self.scope}|{self.owner_id}|{self.name}|{self.version}"


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
