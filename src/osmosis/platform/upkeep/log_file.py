"""The platform's log on the disk, rotated. A disk that takes no lines stops nothing and is said once, not with a
traceback for each line: standard error has them all, and the file says later that some are missing.
"""

from __future__ import annotations

import logging
import sys
from logging.handlers import RotatingFileHandler


class LogFile(RotatingFileHandler):
    """Goes on as soon as it can."""

    _missing = 0
    """Lines that could not be written, since the last one that could."""

    def emit(self, record: logging.LogRecord) -> None:
        missing = self._missing
        super().emit(record)
        if missing and self._missing == missing:
            self._missing = 0
            text = f"{missing} lines could not be written here; standard error has them"
            super().emit(logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, None, None))

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        self._missing += 1
        if self._missing == 1:
            sys.stderr.write(
                f"{self.baseFilename} cannot be written ({error.strerror}): until it can, lines are here\n"
            )
