"""The base of every record: typed, refuses non-finite numbers, says nothing about storage or transport."""

from __future__ import annotations

from datetime import datetime, timezone

from pydantic import BaseModel, ConfigDict

from osmosis.base.json_types import JsonObject


class Record(BaseModel):
    """A typed value that moves between layers. Unknown keys are ignored, so older readers meet newer writers."""

    # Deferred: a command builds the schemas of the records it uses, not of all that its imports bring along.
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, defer_build=True, protected_namespaces=())

    def to_dict(self) -> JsonObject:
        """JSON-safe dict; keys with no value are left out."""
        return self.model_dump(mode="json", exclude_none=True)

    def to_line(self) -> bytes:
        """One JSON line (with the newline), as a journal stores it."""
        return self.model_dump_json(exclude_none=True).encode() + b"\n"


class Strict(Record):
    """A record people write by hand: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid")


def utc_now() -> datetime:
    """The current time, aware, in UTC: every stored time is made here."""
    return datetime.now(timezone.utc)
