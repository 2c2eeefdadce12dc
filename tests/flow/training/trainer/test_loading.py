"""A base model that cannot be used: one sentence that says why, and what to do, before anything large is read."""

from typing import Any

import pytest

pytestmark = [pytest.mark.network, pytest.mark.slow]
EXPECTED = {
    "without_template": ("model", "has no chat template"),
    "without_weights": ("model", "weights must be safetensors files; pytorch_model.bin is of another kind"),
    "without_a_shard": ("model", "model-2.safetensors"),
    "cut_short": ("model", "is not a complete safetensors file"),
    "with_code": ("model", "needs Python code of its own"),
    "without_config": ("model", "has no config.json"),
    "without_an_end": ("model", "no end-of-turn token"),
    "too_large": ("memory", "the base model takes about"),
    "too_long": ("data", "max_prompt_length + max_response_length are 1060 tokens"),
}


@pytest.fixture(scope="module")
def found(checks: Any) -> dict[str, Any]:
    results: dict[str, Any] = checks("unusable")["unusable"]
    return results


@pytest.mark.parametrize("case", EXPECTED)
def test_it_says_why(found: dict[str, Any], case: str) -> None:
    kind, words = EXPECTED[case]
    assert found[case][0] == kind, found[case]
    assert words in found[case][1]
    assert found[case][2]
