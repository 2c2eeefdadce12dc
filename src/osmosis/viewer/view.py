"""What a page is before it is text: a template with its values, or a document as it is; and its twin as JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

import orjson
from pydantic import BaseModel

from osmosis.errors import NotFound

from .source import RunSource, RunState


@dataclass(frozen=True, slots=True)
class View:
    """A template and what it shows."""

    template: str
    values: Mapping[str, object]
    record: Sequence[str] = ()
    """The values that are the page's record, by name: its `.json` twin."""
    live: str = ""
    """The template of what changes on it, with the same values; empty: nothing does."""
    final: bool = True
    """Whether nothing will change any more."""

    @property
    def changing(self) -> View:
        """What changes on this page, all of it, as it is at this moment. NotFound where nothing does."""
        if not self.live:
            raise NotFound("this page does not change", hint="reload it")
        return View(self.live, self.values)


@dataclass(frozen=True, slots=True)
class Document:
    """Something that is no page: a table to download, a record."""

    content: Iterable[bytes]
    media_type: str
    file_name: str = field(default="")
    """Under which a browser saves it; empty: it shows it."""

    @property
    def headers(self) -> dict[str, str]:
        name = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in self.file_name)
        return {"Content-Disposition": f'attachment; filename="{name}"'} if name else {}


def head(source: RunSource, run: RunState, tab: str) -> dict[str, object]:
    """What every page of a run begins with."""
    return {"run": run, "place": source.place(), "tab": tab, "was": ""}


def twin(view: View) -> Document:
    """The record of a page."""
    kept = {name: dumped(view.values[name]) for name in view.record}
    return Document(
        [orjson.dumps(kept, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS), b"\n"], "application/json"
    )


def dumped(value: object) -> object:
    """Any record as plain JSON; what is no data (how a column writes its values) is left out."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_none=True)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = ((one.name, getattr(value, one.name)) for one in dataclasses.fields(value))
        return {name: dumped(found) for name, found in pairs if not callable(found)}
    if isinstance(value, Mapping):
        return {str(key): dumped(found) for key, found in value.items()}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (str, int)) or value is None:
        return value
    return [dumped(one) for one in value] if isinstance(value, Iterable) else str(value)
