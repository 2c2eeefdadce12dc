"""People and what is theirs: tokens as hashes, secrets encrypted and bound to their owner."""

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.ext.associationproxy import AssociationProxy, association_proxy
from sqlalchemy.orm import Mapped, declared_attr, mapped_column, relationship

from osmosis.platform.tables.base import Base, Dated, Json, NumberedRow, Row, Updated
from osmosis.records.base import utc_now


class User(Dated, Row):
    __tablename__ = "users"

    handle: Mapped[str] = mapped_column(unique=True)
    email: Mapped[str] = mapped_column(unique=True)
    name: Mapped[str]
    operator: Mapped[bool] = mapped_column(default=False)
    """May add and remove people, and whatever touches the platform's machine."""


class OwnedRow(Row):
    __abstract__ = True

    workspace_id: Mapped[str] = mapped_column(
        sa.ForeignKey("workspaces.id", ondelete="CASCADE"), index=True, sort_order=-2
    )
    creator_id: Mapped[str | None] = mapped_column(sa.ForeignKey("users.id", ondelete="SET NULL"), sort_order=-1)
    creator_name: AssociationProxy[str | None] = association_proxy("creator", "name")
    creator_email: AssociationProxy[str | None] = association_proxy("creator", "email")

    @declared_attr
    def creator(cls) -> Mapped[User | None]:  # noqa: N805 - as SQLAlchemy calls it
        return relationship(viewonly=True)


class LinkedIdentity(Dated, Base):
    __tablename__ = "identities"

    issuer: Mapped[str] = mapped_column(primary_key=True)
    subject: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(sa.ForeignKey("users.id", ondelete="CASCADE"), index=True)
    email: Mapped[str]
    last_used_at: Mapped[datetime] = mapped_column(default=utc_now)


class Token(Dated, Row):
    __tablename__ = "tokens"

    user_id: Mapped[str] = mapped_column(sa.ForeignKey("users.id", ondelete="CASCADE"), index=True)
    hash: Mapped[str] = mapped_column(unique=True)
    name: Mapped[str]
    kind: Mapped[str]  # `device` (a terminal), `session` (a browser) or `personal` (made by name)
    scopes: Mapped[str]  # `api`, `git`, `worker`, `inference`, separated by blanks
    workspace_id: Mapped[str | None] = mapped_column(sa.ForeignKey("workspaces.id", ondelete="CASCADE"), index=True)
    """The only workspace it is good for; None: all of the person's."""
    parent_id: Mapped[str | None] = mapped_column(sa.ForeignKey("tokens.id", ondelete="SET NULL"), index=True)
    """The token it was made with; revoking that revokes this."""
    expires_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    user: Mapped[User] = relationship(lazy="joined")
    workspace: Mapped["Workspace | None"] = relationship(viewonly=True)


class DeviceCode(Dated, Row):
    __tablename__ = "device_codes"

    device_hash: Mapped[str] = mapped_column(unique=True)
    user_code: Mapped[str] = mapped_column(unique=True)
    device_name: Mapped[str]
    status: Mapped[str] = mapped_column(default="pending")
    user_id: Mapped[str | None] = mapped_column(sa.ForeignKey("users.id", ondelete="CASCADE"))
    maker_id: Mapped[str | None] = mapped_column(sa.ForeignKey("tokens.id", ondelete="CASCADE"))
    expires_at: Mapped[datetime]
    last_polled_at: Mapped[datetime | None]


class Workspace(Dated, Row):
    __tablename__ = "workspaces"

    name: Mapped[str] = mapped_column(unique=True)
    max_runs: Mapped[int | None]  # This and the six below are its quotas; None: no limit
    max_rollouts: Mapped[int | None]
    max_cpus: Mapped[float | None]
    max_memory_mb: Mapped[int | None]
    max_gpus: Mapped[int | None]
    max_datasets: Mapped[int | None]
    max_bytes: Mapped[int | None] = mapped_column(sa.BigInteger)
    served_at: Mapped[datetime | None]


class Member(Dated, Base):
    __tablename__ = "members"

    workspace_id: Mapped[str] = mapped_column(sa.ForeignKey("workspaces.id", ondelete="CASCADE"), primary_key=True)
    user_id: Mapped[str] = mapped_column(sa.ForeignKey("users.id", ondelete="CASCADE"), primary_key=True, index=True)
    role: Mapped[str] = mapped_column(default="member")


class Invitation(Dated, Base):
    __tablename__ = "invitations"

    workspace_id: Mapped[str] = mapped_column(sa.ForeignKey("workspaces.id", ondelete="CASCADE"), primary_key=True)
    email: Mapped[str] = mapped_column(primary_key=True, index=True)
    role: Mapped[str]
    inviter_id: Mapped[str | None] = mapped_column(sa.ForeignKey("users.id", ondelete="SET NULL"))


class AuditEntry(NumberedRow):
    __tablename__ = "audit_log"
    __table_args__ = (sa.Index("ix_audit_log_workspace_id_id", "workspace_id", "id"),)

    timestamp: Mapped[datetime] = mapped_column(default=utc_now, index=True)
    workspace_id: Mapped[str | None] = mapped_column(sa.ForeignKey("workspaces.id", ondelete="SET NULL"))
    actor_id: Mapped[str | None] = mapped_column(sa.ForeignKey("users.id", ondelete="SET NULL"), index=True)
    actor: Mapped[str]
    token: Mapped[str]
    address: Mapped[str]
    action: Mapped[str]
    target: Mapped[str] = mapped_column(sa.Text)
    details: Mapped[dict[str, object] | None] = mapped_column(Json)


class Secret(Updated, Row):
    __tablename__ = "secrets"
    __table_args__ = (sa.UniqueConstraint("workspace_id", "scope", "owner_id", "name"),)

    workspace_id: Mapped[str] = mapped_column(sa.ForeignKey("workspaces.id", ondelete="CASCADE"), index=True)
    scope: Mapped[str]  # `workspace`, `user`, or `run` for a value given with one run
    owner_id: Mapped[str]
    name: Mapped[str]
    version: Mapped[int] = mapped_column(default=1)
    key_id: Mapped[str]
    nonce: Mapped[bytes]
    ciphertext: Mapped[bytes]
    creator_id: Mapped[str | None] = mapped_column(sa.ForeignKey("users.id", ondelete="SET NULL"))
    updater_id: Mapped[str | None] = mapped_column(sa.ForeignKey("users.id", ondelete="SET NULL"))
    creator: Mapped[User | None] = relationship(foreign_keys=creator_id, viewonly=True)
    updater: Mapped[User | None] = relationship(foreign_keys=updater_id, viewonly=True)
    creator_name: AssociationProxy[str | None] = association_proxy("creator", "name")
    updater_name: AssociationProxy[str | None] = association_proxy("updater", "name")
    last_used_at: Mapped[datetime | None]
    last_used_by: Mapped[str | None]

    @property
    def about(self) -> str:
        """Return what the value is bound to: a change of any of these makes it unreadable."""
        return f"{self.workspace_id}|{self.scope}|{self.owner_id}|{self.name}|{self.version}"


class RolloutServer(Dated, Row):
    __tablename__ = "rollout_servers"
    __table_args__ = (sa.UniqueConstraint("owner_id", "host", "port"),)

    workspace_id: Mapped[str | None] = mapped_column(sa.ForeignKey("workspaces.id", ondelete="SET NULL"), index=True)
    owner_id: Mapped[str] = mapped_column(sa.ForeignKey("users.id", ondelete="CASCADE"))
    owner: Mapped[User] = relationship(viewonly=True)
    owner_name: AssociationProxy[str] = association_proxy("owner", "name")
    host: Mapped[str]
    port: Mapped[int]
    agent_loop_name: Mapped[str]
    key_id: Mapped[str | None]  # This and the next two are the server's API key, sealed; None without one
    nonce: Mapped[bytes | None]
    ciphertext: Mapped[bytes | None]
    status: Mapped[str]  # `healthy` or `unhealthy`, as last checked; `last_seen` may say otherwise
    error: Mapped[str | None] = mapped_column(sa.Text)
    last_seen: Mapped[datetime] = mapped_column(default=utc_now, index=True)
