import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from json import dumps
from typing import TYPE_CHECKING, Any

from osmosis.base.jsonable import JsonObject, iterate_leaves

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA_VERSION = 1
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Column:
    """A column of a list: `key` into a row (dots for nested keys), `title` for people."""

    key: str
    title: str
    justify: str = "left"
    show: Callable[[Any], str] | None = None
    """Format of the value for people; `--plain` and `--json` print the value itself."""
    style: str = ""
    wide: bool = False


def build_columns(*texts: str) -> list[Column]:
    """Build plain columns of `key=Title`; one of `>key=Title` is aligned to the right."""
    pairs = (text.partition("=")[::2] for text in texts)
    return [Column(key.removeprefix(">"), title, "right" if key.startswith(">") else "left") for key, title in pairs]


@dataclass(frozen=True)
class NextStep:
    action: str
    command: str | None = None
    url: str | None = None

    def to_dict(self) -> dict[str, str]:
        pairs = {"action": self.action, "command": self.command, "label": self.url and self.action, "url": self.url}
        return {key: value for key, value in pairs.items() if value}


@dataclass
class Result:
    extra: JsonObject = field(default_factory=dict, kw_only=True)
    next_steps: list[NextStep] = field(default_factory=list, kw_only=True)
    exit_code: int = field(default=0, kw_only=True)
    """Exit code of a shown result; not 0 for `--fail-under` and partial downloads."""
    human: "Callable[[Console], None] | None" = field(default=None, kw_only=True)
    """Draws the result for people instead of the default drawing; prints `Text`, never markup."""
    brief: Mapping[str, Any] | None = field(default=None, kw_only=True)
    """Keys and values for people, used without `human`; None uses the data."""

    def envelope(self) -> JsonObject:
        raise TypeError("a command returns a ListResult, DetailResult or OperationResult")

    def cells(self) -> Iterable[list[object]]:
        return ()

    def _tail(self) -> JsonObject:
        steps = {"next_steps_structured": [s.to_dict() for s in self.next_steps]} if self.next_steps else {}
        return {**self.extra, **steps}


@dataclass
class ListResult(Result):
    items: list[JsonObject]
    columns: Sequence[Column]
    title: str = ""
    empty: str = "nothing here yet"
    total_count: int | None = None
    has_more: bool = False
    next_offset: int | None = None
    more: str = "--offset"  # Option that shows more of them

    def envelope(self) -> JsonObject:
        total = len(self.items) if self.total_count is None else self.total_count
        page = {"total_count": total, "has_more": self.has_more, "next_offset": self.next_offset}
        return {"schema_version": SCHEMA_VERSION, "items": self.items, **page, **self._tail()}

    def cells(self) -> Iterable[list[object]]:
        for row in self.items:
            yield [pick(row, column.key) for column in self.columns]


@dataclass
class DetailResult(Result):
    data: JsonObject
    title: str = ""

    def envelope(self) -> JsonObject:
        return {"schema_version": SCHEMA_VERSION, "data": self.data, **self._tail()}

    def cells(self) -> Iterable[list[object]]:
        return _flatten(self.data)


@dataclass
class OperationResult(Result):
    """An action: `operation` is `noun.verb`, `message` one sentence for people."""

    operation: str
    message: str
    resource: JsonObject = field(default_factory=dict)
    status: str = "success"

    def envelope(self) -> JsonObject:
        head = {"schema_version": SCHEMA_VERSION, "status": self.status, "operation": self.operation}
        return {**head, "resource": self.resource, "message": self.message, **self._tail()}

    def cells(self) -> Iterable[list[object]]:
        yield [self.message]
        yield from _flatten(self.resource)


def clean(text: object) -> str:
    if text is None:
        return ""
    if isinstance(text, bool):
        return "yes" if text else "no"
    raw = text if isinstance(text, str) else to_json(text) if isinstance(text, (dict, list)) else str(text)
    return _CONTROL.sub(lambda m: f"\\x{ord(m.group()):02x}", raw.replace("\r\n", "\n"))


def to_json(value: object) -> str:
    return dumps(_finite(value), ensure_ascii=False, separators=(", ", ": "), default=_json_default)


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_finite(v) for v in value]
    return value


def _json_default(value: object) -> object:
    if hasattr(value, "model_dump"):
        return _finite(value.model_dump(mode="json"))
    if isinstance(value, Enum):
        return value.value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def when(value: object) -> str:
    try:
        parsed = datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    except ValueError:
        return str(value or "")
    return parsed.astimezone().strftime("%Y-%m-%d %H:%M")


def format_duration(ms: float) -> str:
    if ms < 1000:
        return f"{ms:.0f}ms"
    seconds = ms / 1000
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(seconds, 60)
    return f"{minutes:.0f}m{rest:.1f}s"


def format_tokens(tokens: int) -> str:
    return f"{tokens:,}"


def pick(row: Mapping[str, object], key: str) -> object:
    value: object = row
    for part in key.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value


def _flatten(data: Mapping[str, object]) -> Iterable[list[object]]:
    return ([path, value] for path, value in iterate_leaves(data) if value is not None)
