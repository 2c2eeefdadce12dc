"""How many rows of a dataset the platform runs. Which of them these are is the platform's to draw."""

from __future__ import annotations

_SAMPLE = 10
"""Without a limit, the platform runs one row in ten."""


def sampled(total: int, limit: int | None) -> int:
    """The first `limit` rows, else a tenth, but at least one."""
    return min(limit, total) if limit is not None else max(1, total // _SAMPLE)
