"""Base classes of all bodies: keys that were not given stay absent, unknown keys are kept."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, ClassVar, Generic, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field

from osmosis.base.jsonable import JsonObject
from osmosis.records.base import Record


def format_moment(value: datetime | None) -> str | None:
    return None if value is None else value.isoformat()


Moment = Annotated[str, BeforeValidator(lambda value: value.isoformat() if isinstance(value, datetime) else value)]
"""ISO time; a response is made of a time, too."""
BodyT = TypeVar("BodyT", bound="Body")


class Body(Record):
    model_config = ConfigDict(extra="allow", coerce_numbers_to_str=True)

    @classmethod
    def from_row(cls: type[BodyT], row: object, **values: object) -> BodyT:
        names = [name for name in cls.model_fields if name not in values and hasattr(row, name)]
        return cls.model_validate({**{name: getattr(row, name) for name in names}, **values})

    def to_dict(self) -> JsonObject:
        """Return a JSON-safe dict of the keys that were given: null stays null, absent stays absent."""
        return self.model_dump(mode="json", exclude_unset=True)


class RequestBody(Record):
    model_config = ConfigDict(populate_by_name=True)

    def to_dict(self) -> JsonObject:
        return self.model_dump(mode="json", exclude_none=True, by_alias=True)


class Nothing(Body): ...


RowT_co = TypeVar("RowT_co", bound=Body, covariant=True)


class Page(Body, Generic[RowT_co]):
    rows_key: ClassVar[str]
    total_count: int | None = None
    has_more: bool = False
    next_offset: int | None = None
    """Offset of the next page; None on the last one."""

    @property
    def rows(self) -> Sequence[RowT_co]:
        rows: Sequence[RowT_co] = getattr(self, self.rows_key)
        return rows


class LogEntry(Body):
    timestamp: Moment | None = None
    level: str | None = None
    step: str | None = None
    message: str | None = None
    details: JsonObject | None = None


OrEmpty = BeforeValidator(lambda value: [] if value is None else value)


class LogPage(Body):
    logs: list[LogEntry] = Field(default_factory=list)
    next_cursor: str | None = None
    latest_cursor: str | None = None
