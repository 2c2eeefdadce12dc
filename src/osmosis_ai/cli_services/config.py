"""Rubric files."""

from osmosis.engine.rubrics.rubric_files import (
    ParsedItem as ParsedItem,
)
from osmosis.engine.rubrics.rubric_files import (
    RubricConfig as RubricConfig,
)
from osmosis.engine.rubrics.rubric_files import (
    RubricSuite as RubricSuite,
)
from osmosis.engine.rubrics.rubric_files import (
    load_rubric_configs as load_rubric_configs,
)
from osmosis.engine.rubrics.rubric_files import (
    load_rubric_suite as load_rubric_suite,
)

__all__ = [
    "ParsedItem",
    "RubricConfig",
    "RubricSuite",
    "load_rubric_configs",
    "load_rubric_suite",
]
