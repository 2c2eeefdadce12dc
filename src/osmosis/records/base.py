from datetime import datetime, timezone

from pydantic import BaseModel, ConfigDict

from osmosis.base.jsonable import JsonObject


class Record(BaseModel):
    """A typed value that moves between layers. Unknown keys are ignored, so that older readers accept newer writers;
    numbers are finite."""

    # Deferred: a command builds the schemas of the records it uses, not of all that its imports bring along.
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, defer_build=True, protected_namespaces=())

    def to_dict(self) -> JsonObject:
        return self.model_dump(mode="json", exclude_none=True)

    def to_line(self) -> bytes:
        return self.model_dump_json(exclude_none=True).encode() + b"\n"


class Strict(Record):
    """A record written by hand: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid")


def utc_now() -> datetime:
    return datetime.now(timezone.utc)
