"""Reports of rubric runs."""

from osmosis.engine.rubrics.rubric_report import (
    Baseline as Baseline,
)
from osmosis.engine.rubrics.rubric_report import (
    build_report as build_report,
)
from osmosis.engine.rubrics.rubric_report import (
    summarise as summarise,
)

__all__ = [
    "Baseline",
    "build_report",
    "summarise",
]
