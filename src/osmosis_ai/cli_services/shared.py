"""Statistics of rubric runs."""

from osmosis.sdk.rubric_report import (
    STATISTICS as STATISTICS,
)

__all__ = [
    "STATISTICS",
]
