"""Lines of the platform's log: as text for people, or as one JSON object each for what collects them.

Each line that is written while a request is answered carries its id; the answer names the same id, so that a person who
was told of an error finds it in the log.
"""

from __future__ import annotations

import json
import logging
from contextvars import ContextVar
from datetime import datetime, timezone

from osmosis.platform.settings import LogFormat

request_id: ContextVar[str] = ContextVar("osmosis-request-id", default="")
"""Of the request that is being answered; empty outside of one."""
FIELDS = "fields"
"""The name under which a line's own keys are given: `log.info("...", extra={FIELDS: {...}})`."""


def formatter(kind: LogFormat) -> logging.Formatter:
    return JsonLines() if kind == "json" else TextLines("%(asctime)s %(levelname)s %(name)s: %(message)s")


class TextLines(logging.Formatter):
    """Time, level, where it comes from, what happened, and the request."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        if known := request_id.get():
            first, newline, rest = line.partition("\n")
            line = f"{first} [request {known}]{newline}{rest}"
        return line


class JsonLines(logging.Formatter):
    """`time` (UTC), `level`, `logger`, `message`; `request_id`, `exception` and a line's own keys if there are any."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, timezone.utc)
        said: dict[str, object] = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if known := request_id.get():
            said["request_id"] = known
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        own = getattr(record, FIELDS, None)
        if isinstance(own, dict):
            said |= own
        return json.dumps(said, ensure_ascii=False, default=str)
