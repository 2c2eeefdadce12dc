"""Helpers for tests of agent loops."""

from osmosis.testing.mock_trainer import (
    RolloutCompletionTracker as RolloutCompletionTracker,
)
from osmosis.testing.mock_trainer import (
    create_mock_trainer_app as create_mock_trainer_app,
)
from osmosis.testing.mock_trainer import (
    fake_prompt_token_ids as fake_prompt_token_ids,
)
from osmosis.testing.mock_trainer import (
    fake_token_ids as fake_token_ids,
)
from osmosis.testing.mock_trainer import (
    patch_httpx_for_mock_trainer as patch_httpx_for_mock_trainer,
)

__all__ = [
    "RolloutCompletionTracker",
    "create_mock_trainer_app",
    "fake_prompt_token_ids",
    "fake_token_ids",
    "patch_httpx_for_mock_trainer",
]
