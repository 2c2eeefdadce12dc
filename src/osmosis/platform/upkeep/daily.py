"""The sweep of a platform that runs: once a day, in a thread of its own, with what went in the log."""

from __future__ import annotations

import logging
import threading
from collections import Counter

from osmosis.errors import Conflict
from osmosis.platform import Platform

from .sweep import ROWS, sweep

log = logging.getLogger(__name__)

FIRST_S = 900.0
"""After a start: what waits for it comes first."""
EVERY_S = 24 * 3600.0


class DailySweep:
    """Starts with the platform, and ends with it."""

    def __init__(self, platform: Platform, *, first_s: float = FIRST_S, every_s: float = EVERY_S) -> None:
        self._platform = platform
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(first_s, every_s), name="sweep", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()

    def _run(self, first_s: float, every_s: float) -> None:
        wait = first_s
        while not self._over.wait(wait):
            wait = every_s
            try:
                gone = sweep(self._platform)
            except Conflict:
                continue
            except Exception:
                # The border of a background thread: tomorrow it tries again.
                log.exception("what is not needed could not be removed")
                continue
            count = Counter(waste.kind for waste in gone)
            size = sum(waste.size for waste in gone if waste.kind not in ROWS)
            if gone:
                said = ", ".join(f"{number} {kind}" for kind, number in count.items())
                log.info("removed what is not needed any more: %s (%.1f MB)", said, size / 1e6)
