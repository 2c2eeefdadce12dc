"""Whether the platform answers where jobs report to: a job that nobody could hear is not silent.

A worker beside the database goes on while the platform itself is away or stands still; it asks this before it ends a
job whose lease ran out. After an absence each job has a whole lease to speak again.
"""

from __future__ import annotations

import logging
import math
import time

import httpx

from osmosis.base.net import is_loopback

log = logging.getLogger(__name__)
TIMEOUT_S = 5.0
STOOD_STILL_S = 4.0
"""Pauses that are shorter say nothing but that the machine is busy."""


class Hearing:
    """Asks `/health` now and then. For one thread."""

    def __init__(self, url: str, lease_s: float) -> None:
        self._url = f"{url.rstrip('/')}/health"
        self._lease_s = lease_s
        self._http = httpx.Client(timeout=min(TIMEOUT_S, lease_s / 4), trust_env=not is_loopback(url))
        self._asked_at: float | None = None
        self._failed_at: float | None = None

    def missed(self) -> bool:
        """Whether jobs may have spoken in vain within the last lease."""
        now = time.monotonic()
        since = math.inf if self._asked_at is None else now - self._asked_at
        if since >= self._lease_s / 8:
            answers = self._answers()
            if not answers and not self._lately():
                log.warning("nobody answers at %s: jobs are not ended for being silent", self._url)
            if not answers or since > max(
                self._lease_s, STOOD_STILL_S
            ):  # for so long nobody asked: it may have been away
                self._failed_at = time.monotonic()
            self._asked_at = time.monotonic()
        return self._lately()

    def _lately(self) -> bool:
        return self._failed_at is not None and time.monotonic() - self._failed_at < self._lease_s

    def _answers(self) -> bool:
        try:
            return self._http.get(self._url).status_code == 200
        except httpx.HTTPError:
            return False
