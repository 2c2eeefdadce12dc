"""The plan and the sequences refuse what cannot be trained on, and say which number is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from osmosis.training.link import Sequence, TrainerPlan


def plan(**changes: Any) -> TrainerPlan:
    values: dict[str, Any] = {
        "run": "r", "model_path": "m", "output_dir": "o", "rows": [0, 1], "steps": 2, "rows_per_step": 2,
        "samples_per_row": 4,        "max_prompt_length": 100, "max_response_length": 20, "lr": 1e-3,
    }  # fmt: skip
    return TrainerPlan(**{**values, **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"samples_per_row": 1}, "at least 2"),
        ({"gradient_accumulation": 3}, "2 rows x 4 samples cannot be divided"),
        ({"processes": 3}, "into 3 process"),
        ({"method": "sft"}, "needs examples_path"),
        ({"engine": "tinker"}, "needs engine_url"),
        ({"sampler": "vllm"}, "needs sampler_url"),
        ({"lr": float("nan")}, "finite"),
    ],
)
def test_a_plan_that_cannot_work_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        plan(**changes)


def test_a_fingerprint_names_what_decides_the_result() -> None:
    assert plan().fingerprint == plan(output_dir="elsewhere", steps=9, keep=2, resume_from="x").fingerprint
    different = [plan(lr=2e-3), plan(seed=1), plan(rows=[1, 0]), plan(loss="grpo"), plan(lora_rank=8)]
    assert len({one.fingerprint for one in different} | {plan().fingerprint}) == 6


def test_a_sequence_has_one_mask_value_and_logprob_for_each_token_after_the_prompt() -> None:
    good = {"row": 0, "attempt": 0, "token_ids": [1, 2, 3], "prompt_length": 1, "mask": [1, 0], "logprobs": [-0.5, 0.0]}
    assert Sequence.model_validate({**good, "reward": None}).reward is None
    for bad in ({"mask": [1]}, {"logprobs": []}, {"prompt_length": 3}, {"mask": [1, 2]}, {"reward": float("nan")}):
        with pytest.raises(ValidationError):
            Sequence.model_validate({"reward": 1.0, **good, **bad})
