"""A rubric run."""

from osmosis.engine.rubrics.rubric_run import (
    RubricJob as RubricJob,
)
from osmosis.engine.rubrics.rubric_run import (
    run_rubric as run_rubric,
)

__all__ = [
    "RubricJob",
    "run_rubric",
]
