"""Rubric runs."""

from osmosis.classic.rubric import (
    RubricEvaluator as RubricEvaluator,
)
from osmosis.engine.rubrics.conversations import (
    RubricRecord as RubricRecord,
)
from osmosis.engine.rubrics.conversations import (
    load_rubric_records as load_rubric_records,
)
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
from osmosis.engine.rubrics.rubric_report import (
    Baseline as Baseline,
)
from osmosis.engine.rubrics.rubric_report import (
    build_report as build_report,
)
from osmosis.engine.rubrics.rubric_report import (
    summarise as summarise,
)
from osmosis.engine.rubrics.rubric_run import (
    RubricRun as RubricRun,
)
from osmosis.errors import (
    OsmosisError as CLIError,
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
