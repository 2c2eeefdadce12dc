"""People and what they log in with: users, tokens (hashed), device codes of a login in progress."""

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
