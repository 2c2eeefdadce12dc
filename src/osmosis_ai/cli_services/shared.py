"""Statistics of rubric runs."""

from osmosis.engine.rubrics.rubric_report import (
    STATISTICS as STATISTICS,
)

__all__ = [
    "STATISTICS",
]
