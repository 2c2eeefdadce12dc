"""Conversation files."""

from osmosis.sdk.rubric_records import (
    RubricRecord as RubricRecord,
)
from osmosis.sdk.rubric_records import (
    load_rubric_records as load_rubric_records,
)

__all__ = [
    "RubricRecord",
    "load_rubric_records",
]
