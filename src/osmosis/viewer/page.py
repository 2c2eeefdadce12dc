import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import orjson
from pydantic import BaseModel

from osmosis.errors import NotFound

if TYPE_CHECKING:
    from osmosis.viewer.run_source import RunSource, RunState


@dataclass(frozen=True, slots=True)
class Page:
    template: str
    values: Mapping[str, object]
    record: Sequence[str] = ()
    """Names of the values that the page's `.json` contains."""
    live: str = ""
    """Template of the part that changes, with the same values; empty when nothing does."""
    final: bool = True

    @property
    def changing(self) -> "Page":
        if not self.live:
            raise NotFound("this page does not change", hint="reload it")
        return Page(self.live, self.values)


@dataclass(frozen=True, slots=True)
class Document:
    content: Iterable[bytes]
    media_type: str
    file_name: str = ""

    @property
    def headers(self) -> dict[str, str]:
        name = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in self.file_name)
        return {"Content-Disposition": f'attachment; filename="{name}"'} if name else {}


def run_header(source: "RunSource", run: "RunState", tab: str) -> dict[str, object]:
    return {"run": run, "context": source.context(), "tab": tab, "was": ""}


def to_record(page: Page) -> Document:
    record = {name: to_json(page.values[name]) for name in page.record}
    text = orjson.dumps(record, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS)
    return Document([text, b"\n"], "application/json")


def to_json(value: object) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_none=True)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
        return {name: to_json(item) for name, item in pairs if not callable(item)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (str, int)) or value is None:
        return value
    return [to_json(item) for item in value] if isinstance(value, Iterable) else str(value)


MAX_VALUE_LENGTH = 500
MAX_VALUES = 200


class QueryParams:
    """Names and values in order, without empty ones; a value that cannot be read counts as not given."""

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        stripped = ((name, value.strip()[:MAX_VALUE_LENGTH]) for name, value in list(pairs)[:MAX_VALUES])
        self.pairs: Sequence[tuple[str, str]] = [(name, value) for name, value in stripped if value]

    def text(self, name: str, default: str = "") -> str:
        return next((value for key, value in self.pairs if key == name), default)

    def all(self, name: str) -> list[str]:
        return list(dict.fromkeys(value for key, value in self.pairs if key == name))

    def integer(self, name: str) -> int | None:
        text = self.text(name)
        return int(text[:9]) if text.isascii() and text.isdigit() else None

    def real(self, name: str) -> float | None:
        try:
            value = float(self.text(name, "nan"))
        except ValueError:
            return None
        return value if math.isfinite(value) else None

    def choice(self, name: str, options: Iterable[str], default: str = "") -> str:
        value = self.text(name)
        return value if value in options else default

    def link(self, **changes: object) -> str:
        """Return this query with other values for some names (None drops a name): `?outcome=failed&at=2`, or `?`."""
        pairs = [(name, value) for name, value in self.pairs if name not in changes]
        pairs += [(name, str(value)) for name, value in changes.items() if value not in (None, "")]
        return "?" + urlencode(pairs)

    def without(self, *names: str) -> "QueryParams":
        return QueryParams((name, value) for name, value in self.pairs if name not in names)
