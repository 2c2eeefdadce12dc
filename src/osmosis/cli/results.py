"""What a command returns: rows, one thing, or something that was done; and text that cannot steer a terminal.

A command body returns a `ListResult`, `DetailResult` or `OperationResult`; it never prints a result itself. The
envelopes are those of contract B. `output` shows them, `render` draws them for people.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any

from osmosis.base.json_types import JsonObject
from osmosis.base.light_dataclass import dataclass

if TYPE_CHECKING:
    from .drawing import Canvas

SCHEMA_VERSION = 1
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Column:
    """One column of a list: `key` into a row (dots go deeper), `title` for people."""

    key: str
    title: str
    justify: str = "left"
    """`left` or `right` (numbers)."""
    show: Callable[[Any], str] | None = None
    """How people see the value; `--plain` and `--json` always carry the value itself."""
    style: str = ""
    wide: bool = False
    """Left out when the terminal is narrow."""


@dataclass(frozen=True)
class NextStep:
    """What to type or open next: `command` or `url`."""

    action: str
    command: str | None = None
    url: str | None = None

    def to_dict(self) -> dict[str, str]:
        pairs = {"action": self.action, "command": self.command, "label": self.url and self.action, "url": self.url}
        return {key: value for key, value in pairs.items() if value}


@dataclass
class Result:
    """The base: what every kind of result carries."""

    extra: JsonObject = field(default_factory=dict, kw_only=True)
    """Further keys of the envelope (`git`, `workspace`, ...)."""
    next_steps: list[NextStep] = field(default_factory=list, kw_only=True)
    exit_code: int = field(default=0, kw_only=True)
    """For results that are shown and still mean failure (`--fail-under`, partial downloads)."""
    human: Callable[[Canvas], None] | None = field(default=None, kw_only=True)
    """Draws the result for people instead of the default drawing. Use `Line` or rich's `Text`, never markup."""
    brief: Mapping[str, Any] | None = field(default=None, kw_only=True)
    """What people see of it, as keys and values, when neither the whole nor a drawing of its own."""

    def envelope(self) -> JsonObject:
        raise TypeError("a command returns a ListResult, DetailResult or OperationResult")

    def _tail(self) -> JsonObject:
        steps = {"next_steps_structured": [s.to_dict() for s in self.next_steps]} if self.next_steps else {}
        return {**self.extra, **steps}


@dataclass
class ListResult(Result):
    """Rows of one kind. `items` are JSON-safe dicts; `columns` says which of their keys people see."""

    items: list[JsonObject]
    columns: Sequence[Column]
    title: str = ""
    empty: str = "nothing here yet"
    """What people read when there is no row."""
    total_count: int | None = None
    has_more: bool = False
    next_offset: int | None = None

    def envelope(self) -> JsonObject:
        total = len(self.items) if self.total_count is None else self.total_count
        page = {"total_count": total, "has_more": self.has_more, "next_offset": self.next_offset}
        return {"schema_version": SCHEMA_VERSION, "items": self.items, **page, **self._tail()}


@dataclass
class DetailResult(Result):
    """One thing. `data` is a JSON-safe dict; people see its scalars, or what `human` draws."""

    data: JsonObject
    title: str = ""

    def envelope(self) -> JsonObject:
        return {"schema_version": SCHEMA_VERSION, "data": self.data, **self._tail()}


@dataclass
class OperationResult(Result):
    """Something was done. `operation` is `noun.verb`, `message` one sentence for people."""

    operation: str
    message: str
    resource: JsonObject = field(default_factory=dict)
    status: str = "success"
    """`success`; `cancelled` when the person declined; `failed` when it was done and the outcome is a failure."""

    def envelope(self) -> JsonObject:
        head = {"schema_version": SCHEMA_VERSION, "status": self.status, "operation": self.operation}
        return {**head, "resource": self.resource, "message": self.message, **self._tail()}


def clean(text: object) -> str:
    """Any value as text that cannot steer a terminal: control characters become visible escapes."""
    if text is None:
        return ""
    if isinstance(text, bool):
        return "yes" if text else "no"
    raw = text if isinstance(text, str) else to_json(text) if isinstance(text, (dict, list)) else str(text)
    return _CONTROL.sub(lambda m: f"\\x{ord(m.group()):02x}", raw.replace("\r\n", "\n"))


def to_json(value: object) -> str:
    """Compact JSON without non-finite numbers (they become null)."""
    return json.dumps(_finite(value), ensure_ascii=False, separators=(", ", ": "), default=_default)


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_finite(v) for v in value]
    return value


def _default(value: object) -> object:
    if hasattr(value, "model_dump"):
        return _finite(value.model_dump(mode="json"))
    if isinstance(value, Enum):
        return value.value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def when(value: object) -> str:
    """An ISO time as a short local one."""
    try:
        parsed = datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    except ValueError:
        return str(value or "")
    return parsed.astimezone().strftime("%Y-%m-%d %H:%M")


def pick(row: Mapping[str, object], key: str) -> object:
    """`row["a"]["b"]` for `a.b`; None where the path ends early."""
    value: object = row
    for part in key.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value
