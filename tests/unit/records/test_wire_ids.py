"""A rollout id becomes a path segment and a URL segment: it must never be able to be more."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from osmosis.records.wire import RolloutInit


def init(**fields: object) -> RolloutInit:
    return RolloutInit.model_validate(
        {"initial_messages": [], "chat_completions_url": "http://127.0.0.1:1/v1", **fields}
    )


@pytest.mark.parametrize("bad", ["", ".", "..", "../evil", "a/b", "a\\b", "a b", "a\n", "x" * 257, "%2e%2e/é"])
def test_ids_that_could_leave_a_folder_are_refused(bad: str) -> None:
    with pytest.raises(ValidationError):
        init(rollout_id=bad)


@pytest.mark.parametrize("good", ["eval-3-run-0", "a.b_c:d@e", "x" * 256])
def test_ordinary_ids_pass(good: str) -> None:
    assert init(rollout_id=good).rollout_id == good


def test_an_empty_model_key_is_refused_and_a_missing_one_is_not() -> None:
    with pytest.raises(ValidationError, match="llm_api_key"):
        init(llm_api_key="")
    assert init().llm_api_key is None


@pytest.mark.parametrize("bad", [0, -1, float("inf"), float("nan")])
def test_timeouts_are_positive_and_finite(bad: float) -> None:
    with pytest.raises(ValidationError):
        init(agent_timeout_sec=bad)
