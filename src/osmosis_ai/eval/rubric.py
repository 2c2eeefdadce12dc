"""Generation 0.3's rubric evaluation."""

from osmosis.sdk.judge import (
    judge_solution as evaluate_rubric,
)
from osmosis.sdk.judge_model import (
    MissingAPIKeyError as MissingAPIKeyError,
)
from osmosis.sdk.judge_model import (
    ModelNotFoundError as ModelNotFoundError,
)
from osmosis.sdk.judge_model import (
    ProviderRequestError as ProviderRequestError,
)
from osmosis.sdk.judge_result import (
    RubricResult as RubricResult,
)

__all__ = [
    "MissingAPIKeyError",
    "ModelNotFoundError",
    "ProviderRequestError",
    "RubricResult",
    "evaluate_rubric",
]
