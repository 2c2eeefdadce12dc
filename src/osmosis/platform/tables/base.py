import uuid
from datetime import datetime, timezone

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from osmosis.records.base import utc_now

Json = sa.JSON(none_as_null=True)
NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class UtcDateTime(sa.types.TypeDecorator[datetime]):
    """An aware UTC time. SQLite has no zone, so it is stored naive there and read back aware."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a stored time must have a time zone")
        value = value.astimezone(timezone.utc)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=timezone.utc) if value.tzinfo is None else value.astimezone(timezone.utc)


class Base(DeclarativeBase):
    metadata = sa.MetaData(naming_convention=NAMING)
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy reads it as declared
        datetime: UtcDateTime(),
        float: sa.Double(),
    }


def new_id() -> str:
    return uuid.uuid4().hex


class Row(Base):
    __abstract__ = True

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id, sort_order=-3)


class NumberedRow(Base):
    __abstract__ = True

    id: Mapped[int] = mapped_column(primary_key=True, sort_order=-3)


class Dated:
    created_at: Mapped[datetime] = mapped_column(default=utc_now, sort_order=1)


class Updated(Dated):
    updated_at: Mapped[datetime] = mapped_column(default=utc_now, sort_order=2)
