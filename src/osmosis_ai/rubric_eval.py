"""`evaluate_rubric` and what belongs to it."""

from osmosis.sdk.judge import (
    evaluate_rubric as evaluate_rubric,
)
from osmosis.sdk.judge import (
    evaluate_rubric_async as evaluate_rubric_async,
)
from osmosis.sdk.judge_model import (
    DEFAULT_API_KEY_ENV as DEFAULT_API_KEY_ENV,
)
from osmosis.sdk.judge_model import (
    DEFAULT_REQUEST_TIMEOUT_SECONDS as DEFAULT_REQUEST_TIMEOUT_SECONDS,
)
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
from osmosis.sdk.judge_model import (
    ensure_api_key_available as ensure_api_key_available,
)
from osmosis.sdk.judge_result import (
    RewardRubricRunResult as RewardRubricRunResult,
)

__all__ = [
    "DEFAULT_API_KEY_ENV",
    "DEFAULT_REQUEST_TIMEOUT_SECONDS",
    "MissingAPIKeyError",
    "ModelInfo",
    "ModelNotFoundError",
    "ProviderRequestError",
    "RewardRubricRunResult",
    "ensure_api_key_available",
    "evaluate_rubric",
    "evaluate_rubric_async",
]
