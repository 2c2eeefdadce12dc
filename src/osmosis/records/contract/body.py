"""What every body of the API has in common: keys that were not given stay away, keys that are not known are kept.

So a body leaves as it was built and is shown as it came, whichever server of the contract it came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pydantic import AliasChoices, BeforeValidator, ConfigDict, Field

from osmosis.base.json_types import JsonObject
from osmosis.records.base import Record

Moment = str
"""An ISO 8601 time with its zone, kept as it was sent."""


class Body(Record):
    """An answer of the API."""

    model_config = ConfigDict(extra="allow", coerce_numbers_to_str=True)

    def to_dict(self) -> JsonObject:
        """JSON-safe dict of the keys that were given: a key that was null is null, one that was absent is absent."""
        return self.model_dump(mode="json", exclude_unset=True)


class RequestBody(Record):
    """What a client sends. Keys that are not known are ignored."""

    model_config = ConfigDict(populate_by_name=True)

    def to_dict(self) -> JsonObject:
        """JSON-safe dict under the names of the wire, without what was not given."""
        return self.model_dump(mode="json", exclude_none=True, by_alias=True)


class Nothing(Body):
    """An answer that says only that it was done."""


class Page(Body):
    """One page of a list; the rows are under a key of their own."""

    total_count: int | None = None
    has_more: bool = False
    next_offset: int | None = None
    """Where the next page starts; None on the last one."""

    @property
    def rows(self) -> Sequence[Body]:
        """The rows, under whatever key they came."""
        raise NotImplementedError


class LogEntry(Body):
    """One line of a run's or dataset's log."""

    timestamp: Moment | None = None
    level: str | None = None
    """`debug`, `info`, `warning` or `error`."""
    step: str | None = None
    message: str | None = None
    details: JsonObject | None = None


def _or_empty(value: object) -> object:
    return [] if value is None else value


OrEmpty = BeforeValidator(_or_empty)
"""A list that is null is empty."""


class LogPage(Body):
    """Some lines of a log, oldest first."""

    logs: list[LogEntry] = Field(default_factory=list)
    next_cursor: str | None = None
    """Where to go on in the direction that was asked for; None at its end."""
    latest_cursor: str | None = None
    """Where a reader that follows the log goes on."""


def spelled(*names: str) -> AliasChoices:
    """The spellings under which a key may come, ours first."""
    return AliasChoices(*names)


def moment(value: datetime | None) -> Moment | None:
    """A time as bodies say it."""
    return None if value is None else value.isoformat()
