"""Pages, queries and server-sent events. Everything is escaped, an unknown name is an error, a missing value an en
dash, never a zero. One build of an event serves all tabs with a subject, an expensive one less often."""

import asyncio
import dataclasses
import hashlib
import json
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import orjson
from anyio.to_thread import run_sync
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import BaseModel

from osmosis._version import __version__
from osmosis.errors import NotFound, OsmosisError
from osmosis.metrics.formats import NOTHING, count, dollars, duration, interval, number, percent, score, size
from osmosis.records.base import utc_now
from osmosis.records.run.rollout import Category

if TYPE_CHECKING:
    from osmosis.viewer.run_source import RunSource, RunState

_FOLDER = Path(__file__).parent
TEMPLATES = _FOLDER / "templates"
STATIC = _FOLDER / "static"  # Served under `/static`; addresses in templates contain a stamp of the content
SECURITY = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
        "form-action 'self'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True, slots=True)
class Page:
    template: str
    values: Mapping[str, object]
    record: Sequence[str] = ()  # names of the values that the page's `.json` contains
    live: str = ""  # template of the part that changes, with the same values; empty when nothing does
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


MAX_ONE_LINE = 100
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


def build_environment(*folders: Path) -> Environment:
    loader = FileSystemLoader([*folders, TEMPLATES])
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(FILTERS)
    # The stamp changes when any static file does, so that browsers may keep them for ever.
    digest = hashlib.sha256()
    for path in sorted(STATIC.rglob("*")):
        if path.is_file():
            digest.update(path.read_bytes())
    environment.globals.update(stamp=digest.hexdigest()[:12], version=__version__, static=False)
    return environment


ADVICE: dict[Category, str] = {
    Category.AGENT_ERROR: "The rollout's code raised an exception: the traceback on the rollout's page shows where.",
    Category.SCORE_ERROR: "The grader or score function raised an exception: its traceback shows where.",
    Category.INVALID_SCORE: "The score was not a finite number. Return a float, or raise an error when no score "
    "can be computed.",
    Category.TIMEOUT: "Raise agent_workflow_timeout_s or grader_timeout_s, lower batch_size, or look for a call "
    "that blocks the event loop.",
    Category.RATE_LIMIT: "Lower batch_size or raise the provider's limit, then retry the failed rollouts.",
    Category.AUTH: "The model provider rejected the API key. Set the secret again: osmosis secret set NAME.",
    Category.MODEL_NOT_FOUND: "Check experiment.model_path in the config.",
    Category.BAD_REQUEST: "The provider rejected the request. Check that the model supports its parameters and tools.",
    Category.CONTEXT_LENGTH: "The conversation outgrew the model. Shorten prompts and tool results, or take "
    "another model.",
    Category.SERVER_ERROR: "The provider had an error. Retry the failed rollouts later.",
    Category.CONNECTION: "The model's endpoint could not be reached. Check base_url and the network.",
    Category.BAD_RESPONSE: "The rollout server's reply was not a valid message. See the run's log.",
    Category.SERVER_DIED: "The rollout server exited. See the last lines of the run's log.",
    Category.CANCELLED: "The rollout was stopped before it finished. Retry the failed rollouts.",
    Category.BUDGET: "The run's budget was used up. Raise it, or run fewer rows.",
    Category.UNKNOWN: "See the rollout's page and the run's log.",
}


def ago(moment: datetime | None) -> str:
    if moment is None:
        return NOTHING
    seconds = (utc_now() - moment).total_seconds()
    apart = abs(seconds)
    if apart < 60:
        return "just now"
    for limit, divisor, unit in ((3600, 60, "min"), (86400, 3600, "h"), (86400 * 365, 86400, "days")):
        if apart < limit:
            amount = int(apart // divisor) if seconds > 0 else round(apart / divisor)
            text = f"{amount} {'day' if unit == 'days' and amount == 1 else unit}"
            return f"{text} ago" if seconds > 0 else f"in {text}"
    return f"{moment:%Y-%m-%d}"


def moment(value: datetime | None) -> str:
    return NOTHING if value is None else f"{value:%Y-%m-%d %H:%M:%S} UTC"


def iso(value: datetime | None) -> str:
    return value.isoformat() if value else ""


def pretty(value: object, indent: str = "") -> str:
    line = json.dumps(value, ensure_ascii=False, default=str)
    if len(indent) + len(line) <= MAX_ONE_LINE or not value or not isinstance(value, (dict, list)):
        return line
    inner = f"{indent}  "
    if isinstance(value, dict):
        items = [f"{json.dumps(str(key), ensure_ascii=False)}: {pretty(value[key], inner)}" for key in value]
    else:
        items = [pretty(item, inner) for item in value]
    first, last = "{}" if isinstance(value, dict) else "[]"
    return f"{first}\n{inner}" + f",\n{inner}".join(items) + f"\n{indent}{last}"


def advice(category: Category | str) -> str:
    try:
        return ADVICE[Category(category)]
    except ValueError:
        return ADVICE[Category.UNKNOWN]


def label(value: Any) -> str:
    return str(getattr(value, "value", value)).replace("_", " ").replace("-", " ")


def heading(text: str) -> str:
    return text if text.split(" ")[0] == "p" else text[:1].upper() + text[1:]


_FILTERS = (
    number, score, percent, interval, count, dollars, duration, size, ago, moment, iso, pretty, advice, label, heading,
)  # fmt: skip
FILTERS: dict[str, Callable[..., Any]] = {function.__name__: function for function in _FILTERS}


INTERVAL_S = 1.0
KEEPALIVE_S = 15.0
MAX_STREAM_S = 1800.0
MAX_OPEN = 200
RETRY_WHEN_FULL_S = 30
END = b"event: end\ndata: over\n\n"
WORK_SHARE = 4.0  # A pause is at least this many times as long as the last build's CPU time
MAX_FAILURES = 5
MAX_PAUSE_S = 10.0

log = logging.getLogger(__name__)

Build = Callable[[], tuple[str, bool]]


@dataclass(slots=True)
class _Piece:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    text: str = ""
    final: bool = False
    built_at: float = 0.0
    work_s: float = 0.0
    """CPU time of its thread, in seconds: waiting for a lock or a busy machine slows no later build down."""
    readers: int = 0

    @property
    def pause_s(self) -> float:
        return max(INTERVAL_S, min(WORK_SHARE * self.work_s, MAX_PAUSE_S))


class EventStreams:
    def __init__(self) -> None:
        self.open = 0
        self.stopping = False
        self._pieces: dict[str, _Piece] = {}

    def stream(self, subject: str, build: Build) -> AsyncIterator[bytes]:
        """Iterate over the events of one page; with too many open streams it is one event, to be asked for again."""
        return self._events(subject, build) if self.open < MAX_OPEN else self._single(subject, build)

    async def _single(self, subject: str, build: Build) -> AsyncIterator[bytes]:
        yield b"retry: %d\n\n" % (1000 * RETRY_WHEN_FULL_S)
        text, final = await _refresh(self._pieces.get(subject) or _Piece(), build)
        yield format_event(text) + (END if final else b"")

    async def _events(self, subject: str, build: Build) -> AsyncIterator[bytes]:
        self.open += 1
        piece = self._pieces.setdefault(subject, _Piece())
        piece.readers += 1
        started = sent = time.monotonic()
        last: str | None = None
        failures = 0
        try:
            yield b"retry: 2000\n\n"
            while time.monotonic() - started < MAX_STREAM_S and not self.stopping:
                try:
                    text, final = await _refresh(piece, build)
                except OsmosisError:
                    return  # the subject is gone, or the right to see it: the browser asks again, and is told
                except Exception as error:
                    # A page that stops after one failed build is worse than one that is late.
                    failures += 1
                    if failures > MAX_FAILURES:
                        raise
                    name = subject.partition("?")[0]
                    log.warning("a look at %s failed: %s: %s", name, type(error).__name__, error)
                    await asyncio.sleep(piece.pause_s)
                    continue
                failures = 0
                if text != last:
                    last, sent = text, time.monotonic()
                    yield format_event(text)
                if final:
                    yield END
                    return
                if time.monotonic() - sent > KEEPALIVE_S:
                    sent = time.monotonic()
                    yield b": still here\n\n"
                await asyncio.sleep(piece.pause_s)
        finally:
            self.open -= 1
            piece.readers -= 1
            if not piece.readers:
                self._pieces.pop(subject, None)


async def _refresh(piece: _Piece, build: Build) -> tuple[str, bool]:
    async with piece.lock:
        if time.monotonic() - piece.built_at >= INTERVAL_S / 2 or not piece.built_at:
            (piece.text, piece.final), piece.work_s = await run_sync(_measure, build)
            piece.built_at = time.monotonic()
        return piece.text, piece.final


def _measure(build: Build) -> tuple[tuple[str, bool], float]:
    started = time.thread_time()
    return build(), time.thread_time() - started


def format_event(text: str) -> bytes:
    return "".join(f"data: {line}\n" for line in text.splitlines()).encode() + b"\n"
