"""How long to wait before another try: doubling up to a limit, with jitter, or as the other side asked.

Only the calculation: every caller has its own reasons to go on or give up, and its own way to wait, which is why
this is two functions and not a library of retry policies.
"""

from __future__ import annotations

import random
from datetime import datetime, timezone


def backoff_delay(failures: int, *, base_s: float, max_s: float, asked_s: float | None = None) -> float:
    """Seconds after the `failures`-th failure in a row (1 is the first): a random time between half and the whole
    of `base_s` doubled each time, at most `max_s` ("equal jitter": callers that failed together come back apart).
    `asked_s` is for how long the other side wants to be left alone: the delay is no shorter, up to `max_s`.
    """
    ceiling = min(max_s, base_s * 2.0 ** min(failures - 1, 30))
    return max(random.uniform(ceiling / 2, ceiling), min(asked_s or 0.0, max_s))


def parse_retry_after(value: str | None) -> float | None:
    """Seconds from a `Retry-After` header: a number or an HTTP date (RFC 9110, 10.2.3); None when it says neither."""
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    from email.utils import parsedate_to_datetime  # brings all of `email`, for a form that hardly anybody sends

    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(timezone.utc)).total_seconds())
    except (TypeError, ValueError):
        return None
