"""The grader of generation 0.3."""

from osmosis.sdk.grader import (
    Grader as Grader,
)

__all__ = [
    "Grader",
]
