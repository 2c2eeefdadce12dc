"""Judging one record."""

from osmosis.classic.rubric import (
    RubricEvaluator as RubricEvaluator,
)
from osmosis.engine.rubrics.rubric_run import (
    RubricRun as RubricRun,
)

__all__ = [
    "RubricEvaluator",
    "RubricRun",
]
