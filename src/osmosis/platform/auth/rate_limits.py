"""Rate limits in the memory of this process: by address before a login, by account after it. The generic cell rate
algorithm (ITU-T I.371); a whole minute's requests may come at once."""

import math
import threading
import time
from collections.abc import Callable
from typing import Literal

from fastapi import Request
from fastapi.params import Depends

from osmosis.errors import RateLimited

Kind = Literal["login", "poll", "write", "question", "worker"]
PER_MINUTE: dict[Kind, int] = {"login": 60, "poll": 600, "write": 1200, "question": 6000, "worker": 12_000}
_SUBJECTS: dict[Kind, str] = {
    "login": "attempts to log in",
    "poll": "questions about a login",
    "write": "changes",
    "question": "questions to models",
    "worker": "messages of workers with one token",
}
MAX_KEYS = 20_000
WINDOW_S = 60.0


class RateLimits:
    def __init__(self, clock: Callable[[], float] = time.monotonic, per_minute: dict[Kind, int] | None = None) -> None:
        self._clock = clock
        self._per_minute = per_minute or PER_MINUTE
        self._arrivals: dict[tuple[Kind, str], float] = {}
        self._lock = threading.Lock()

    def take(self, kind: Kind, key: str) -> None:
        now, each = self._clock(), WINDOW_S / self._per_minute[kind]
        with self._lock:
            arrival = max(self._arrivals.get((kind, key), now), now) + each
            wait = arrival - now - WINDOW_S
            if wait <= 0:
                self._arrivals[kind, key] = arrival
                if len(self._arrivals) > MAX_KEYS:
                    for old in [old for old, arrival in self._arrivals.items() if arrival <= now]:
                        del self._arrivals[old]
                    for old in list(self._arrivals)[: max(0, len(self._arrivals) - MAX_KEYS)]:
                        del self._arrivals[old]
                return
        seconds = max(1, math.ceil(wait))
        message = f"too many {_SUBJECTS[kind]}: at most {self._per_minute[kind]} a minute"
        raise RateLimited(message, hint=f"try again in {seconds} s", retry_after=seconds)


def limited(kind: Kind) -> Depends:
    async def take(request: Request) -> None:
        rates: RateLimits = request.app.state.platform.rates
        rates.take(kind, address_of(request))

    return Depends(take)


def address_of(request: Request) -> str:
    """Return the client's address, from a trusted proxy's header if any (`FORWARDED_ALLOW_IPS` of uvicorn)."""
    return request.client.host if request.client else ""
