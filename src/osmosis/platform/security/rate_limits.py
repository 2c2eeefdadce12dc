"""How often somebody may ask: by address before a login, by account after it. Kept in memory, for this process.

The generic cell rate algorithm (ITU-T I.371): one time for each key, the moment at which what was asked so far
has been let through evenly. A burst of a whole minute's worth passes at once.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Literal

from fastapi import Request
from fastapi.params import Depends

from osmosis.errors import RateLimited

from .origin import address_of

Kind = Literal["login", "poll", "write", "question", "worker"]
PER_MINUTE: dict[Kind, int] = {"login": 60, "poll": 600, "write": 1200, "question": 6000, "worker": 12_000}
"""Attempts to log in and questions whether a login was approved, of an address; changes and questions to deployed
models, of an account; what workers say, of their token, which may be that of a thousand: four times as often as these
are told to ask."""
_WHAT: dict[Kind, str] = {
    "login": "attempts to log in",
    "poll": "questions about a login",
    "write": "changes",
    "question": "questions to models",
    "worker": "messages of workers with one token",
}
MAX_KEYS = 20_000
"""Addresses and accounts that are remembered; beyond it those who have waited long enough are forgotten."""
WINDOW_S = 60.0


class RateLimits:
    """Who asked how often. Safe for threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, per_minute: dict[Kind, int] | None = None) -> None:
        self._clock = clock
        self._per_minute = per_minute or PER_MINUTE
        self._arrivals: dict[tuple[Kind, str], float] = {}
        self._lock = threading.Lock()

    def take(self, kind: Kind, key: str) -> None:
        """Count one. RateLimited with `retry_after` in whole seconds when it is too many; that one is not counted."""
        now, each = self._clock(), WINDOW_S / self._per_minute[kind]
        with self._lock:
            arrival = max(self._arrivals.get((kind, key), now), now) + each
            wait = arrival - now - WINDOW_S
            if wait <= 0:
                self._arrivals[kind, key] = arrival
                if len(self._arrivals) > MAX_KEYS:
                    self._forget(now)
                return
        seconds = max(1, math.ceil(wait))
        raise RateLimited(
            f"too many {_WHAT[kind]}: at most {self._per_minute[kind]} a minute",
            hint=f"try again in {seconds} s",
            retry_after=seconds,
        )

    def _forget(self, now: float) -> None:
        """Those whose turn has come; if these are not enough, whoever came first."""
        for key in [key for key, arrival in self._arrivals.items() if arrival <= now]:
            del self._arrivals[key]
        for key in list(self._arrivals)[: max(0, len(self._arrivals) - MAX_KEYS)]:
            del self._arrivals[key]


def limited(kind: Kind) -> Depends:
    """For routes and pages that nobody has logged in to: how often one address may ask."""

    async def take(request: Request) -> None:
        rates: RateLimits = request.app.state.platform.rates
        rates.take(kind, address_of(request))

    return Depends(take)
