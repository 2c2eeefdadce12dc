"""The plan and the sequences refuse what cannot be trained on, and say which number is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from osmosis.training.protocol.messages import Batch, Sequence
from osmosis.training.protocol.plans import TrainerPlan


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
        ({"tune": "full", "sampler": "vllm", "sampler_urls": ["http://x"]}, "servers take adapters"),
        ({"method": "sft"}, "needs examples_path"),
        ({"engine": "tinker"}, "needs engine_url"),
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


def sequence(**changes: Any) -> Sequence:
    values: dict[str, Any] = {
        "row": 0, "attempt": 0, "token_ids": [1, 2, 3], "prompt_length": 1, "mask": [1, 0], "logprobs": [-0.5, 0.0],
        "reward": 1.0,
    }  # fmt: skip
    return Sequence(**{**values, **changes})


def test_a_sequence_has_one_mask_value_and_logprob_for_each_token_after_the_prompt() -> None:
    assert sequence(reward=None).reward is None
    for bad in ({"mask": [1]}, {"logprobs": []}, {"prompt_length": 3}, {"mask": [1, 2]}, {"reward": float("nan")}):
        with pytest.raises(ValueError, match="row 0, attempt 0"):
            sequence(**bad)


def test_a_batch_reads_as_it_was_written_and_a_broken_one_is_refused() -> None:
    empty = sequence(row=5, token_ids=[7], prompt_length=1, mask=[], logprobs=[])
    batch = Batch(3, "train", [sequence(), sequence(attempt=1, part=2, reward=None, truncated=True), empty])
    data = batch.to_bytes()
    assert Batch.from_bytes(data) == batch
    broken = [
        b"",
        b"{}\n",
        data[:-1],
        data + b"x",
        data.replace(b'"train"', b'"other"'),
        data.replace(b"[0,0,0,3,", b"[0,0,0,-3,"),
    ]
    for other in broken:
        with pytest.raises(ValueError, match="batch"):
            Batch.from_bytes(other)


def test_a_large_step_is_written_and_read_at_the_speed_of_memory() -> None:
    rest = 8000
    one = sequence(token_ids=range(rest + 1), mask=b"\1" * rest, logprobs=[-0.5] * rest)
    large = Batch(1, "train", [replace(one, attempt=attempt) for attempt in range(512)])
    data = large.to_bytes()
    assert len(data) < 10 * 512 * rest, "nine bytes a token"
    assert Batch.from_bytes(data) == large
