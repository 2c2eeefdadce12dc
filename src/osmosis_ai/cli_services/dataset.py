"""Conversation files."""

from osmosis.engine.rubrics.conversations import (
    RubricRecord as RubricRecord,
)
from osmosis.engine.rubrics.conversations import (
    load_rubric_records as load_rubric_records,
)

__all__ = [
    "RubricRecord",
    "load_rubric_records",
]
