"""Rubric runs."""

from osmosis.classic.rubric import (
    RubricEvaluator as RubricEvaluator,
)
from osmosis.errors import (
    OsmosisError as CLIError,
)
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
from osmosis.sdk.rubric_records import (
    RubricRecord as RubricRecord,
)
from osmosis.sdk.rubric_records import (
    load_rubric_records as load_rubric_records,
)
from osmosis.sdk.rubric_report import (
    Baseline as Baseline,
)
from osmosis.sdk.rubric_report import (
    build_report as build_report,
)
from osmosis.sdk.rubric_report import (
    summarise as summarise,
)
from osmosis.sdk.rubric_run import (
    RubricRun as RubricRun,
)

__all__ = [
    "Baseline",
    "CLIError",
    "ParsedItem",
    "RubricConfig",
    "RubricEvaluator",
    "RubricRecord",
    "RubricRun",
    "RubricSuite",
    "build_report",
    "load_rubric_configs",
    "load_rubric_records",
    "load_rubric_suite",
    "summarise",
]
