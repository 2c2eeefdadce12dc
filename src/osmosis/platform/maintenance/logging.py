import json
import logging
import sys
from contextvars import ContextVar
from datetime import datetime, timezone
from logging.handlers import RotatingFileHandler

from osmosis.platform.settings import LogFormat

request_id: ContextVar[str] = ContextVar("osmosis-request-id", default="")
FIELDS = "fields"
"""The key of a line's own fields: `log.info("...", extra={FIELDS: {...}})`."""


def formatter(kind: LogFormat) -> logging.Formatter:
    return JsonLines() if kind == "json" else TextLines("%(asctime)s %(levelname)s %(name)s: %(message)s")


class TextLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        if id_ := request_id.get():
            first, newline, rest = line.partition("\n")
            line = f"{first} [request {id_}]{newline}{rest}"
        return line


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if id_ := request_id.get():
            fields["request_id"] = id_
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        own = getattr(record, FIELDS, None)
        if isinstance(own, dict):
            fields |= own
        return json.dumps(fields, ensure_ascii=False, default=str)


class LogFile(RotatingFileHandler):
    """A rotated file that says how many lines a full disk did not take."""

    _missing = 0

    def emit(self, record: logging.LogRecord) -> None:
        missing = self._missing
        super().emit(record)
        if missing and self._missing == missing:
            self._missing = 0
            text = f"{missing} lines could not be written here; standard error has them"
            super().emit(logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, None, None))

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - of logging.Handler
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        self._missing += 1
        if self._missing == 1:
            text = f"{self.baseFilename} cannot be written ({error.strerror}): until it can, lines are here\n"
            sys.stderr.write(text)
