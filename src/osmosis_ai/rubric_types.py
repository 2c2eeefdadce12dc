"""Types around `evaluate_rubric`."""

from osmosis.sdk.judge_model import (
    MissingAPIKeyError as MissingAPIKeyError,
)
from osmosis.sdk.judge_model import (
    ModelInfo as ModelInfo,
)
from osmosis.sdk.judge_model import (
    ModelNotFoundError as ModelNotFoundError,
)
from osmosis.sdk.judge_model import (
    ProviderRequestError as ProviderRequestError,
)
from osmosis.sdk.judge_result import (
    RewardRubricRunResult as RewardRubricRunResult,
)

__all__ = [
    "MissingAPIKeyError",
    "ModelInfo",
    "ModelNotFoundError",
    "ProviderRequestError",
    "RewardRubricRunResult",
]
