"""Rubric files."""

from osmosis.sdk.rubric_files import (
    ParsedItem as ParsedItem,
)
from osmosis.sdk.rubric_files import (
    RubricConfig as RubricConfig,
)
from osmosis.sdk.rubric_files import (
    RubricSuite as RubricSuite,
)
from osmosis.sdk.rubric_files import (
    load_rubric_configs as load_rubric_configs,
)
from osmosis.sdk.rubric_files import (
    load_rubric_suite as load_rubric_suite,
)

__all__ = [
    "ParsedItem",
    "RubricConfig",
    "RubricSuite",
    "load_rubric_configs",
    "load_rubric_suite",
]
