"""Commands around rubrics."""

from osmosis.cli.rubric import (
    eval_rubric as eval_rubric,
)
from osmosis.cli.rubric import (
    preview as preview,
)

__all__ = [
    "eval_rubric",
    "preview",
]
