"""The figures of a step's rollouts, checkpoints that are kept, and why training cannot go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from osmosis.errors import ValidationError
from osmosis.records.run.job import hold_file
from osmosis.records.run.training import read_manifest
from osmosis.training.protocol.messages import Batch, Sequence
from osmosis.training.protocol.plans import TrainerPlan
from osmosis.training.trainer.checkpoints import CheckpointStore, load_resume_point
from osmosis.training.trainer.service import TrainingFailed, failed_event


def sequence(row: int, attempt: int, reward: float | None, *, part: int = 0, tokens: int = 2, **more: Any) -> Sequence:
    return Sequence(
        row=row, attempt=attempt, part=part, token_ids=[7] * (3 + tokens), prompt_length=3, mask=[1] * tokens,
        logprobs=[-1.0] * tokens, reward=reward, **more,
    )  # fmt: skip


def test_a_rollout_has_its_parts_in_order_and_one_reward() -> None:
    sequences = [
        sequence(0, 0, 1.0, tokens=4), sequence(0, 1, None), sequence(5, 0, 0.0, part=1), sequence(5, 0, 0.0, part=0),
    ]  # fmt: skip
    batch = Batch(step=1, kind="train", sequences=sequences)
    assert [part.part for part in batch.parts()[5, 0]] == [0, 1]
    assert batch.mean_reward == 0.5
    assert Batch(step=1, kind="train", sequences=[]).mean_reward is None


def plan(folder: Path, **changes: Any) -> TrainerPlan:
    values: dict[str, Any] = {
        "run": "r", "model_path": "m", "output_dir": str(folder), "rows": [0, 1], "steps": 9, "rows_per_step": 2,
        "samples_per_row": 2, "max_prompt_length": 9, "max_response_length": 9, "lr": 1e-3,
    }  # fmt: skip
    return TrainerPlan(**{**values, **changes})


def save(store: CheckpointStore, step: int, reward: float | None) -> Any:
    draft = store.draft(step)
    (draft / "weights").write_text(str(step))
    return store.finish(draft, step, "regular", reward)


def test_the_newest_the_best_and_the_last_checkpoints_are_kept(tmp_path: Path) -> None:
    made = plan(tmp_path, keep=2)
    store = CheckpointStore(made)
    rewards = {1: 0.1, 2: 0.9, 3: 0.3, 4: None, 5: 0.4}
    saved = {step: save(store, step, reward) for step, reward in rewards.items()}
    assert [step for step in saved if saved[step].best] == [1, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000002", "step-000004", "step-000005"]
    assert saved[5].removed == [str(tmp_path / "step-000003")]
    assert CheckpointStore(made).best() == 2  # a resumed run knows


def test_a_checkpoint_that_is_in_use_is_kept_for_as_long(tmp_path: Path) -> None:
    store = CheckpointStore(plan(tmp_path, keep=1))
    first = Path(save(store, 1, 0.1).path)
    hold_file(first).touch()
    assert [save(store, step, reward).removed for step, reward in ((2, 0.9), (3, 0.2))] == [[], []]
    assert (first / "weights").read_text() == "1"
    hold_file(first).unlink()
    assert save(store, 4, 0.3).removed == [str(first), str(tmp_path / "step-000003")]
    assert not first.exists()


def test_a_draft_of_a_killed_run_is_removed_and_never_read(tmp_path: Path) -> None:
    save(CheckpointStore(plan(tmp_path)), 1, 0.5)
    (tmp_path / ".draft-000002").mkdir()
    CheckpointStore(plan(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]
    assert read_manifest(tmp_path / "step-000001").reward == 0.5


def test_only_a_complete_checkpoint_of_the_same_plan_is_resumed(tmp_path: Path) -> None:
    save(CheckpointStore(plan(tmp_path)), 3, None)
    path = str(tmp_path / "step-000003")
    found = load_resume_point(plan(tmp_path, resume_from=path))
    assert found is not None
    assert found.step == 3
    with pytest.raises(TrainingFailed, match="other settings"):
        load_resume_point(plan(tmp_path, resume_from=path, lr=1e-4))
    with pytest.raises(TrainingFailed, match="ends at step 2"):
        load_resume_point(plan(tmp_path, resume_from=path, steps=2))
    (tmp_path / "step-000003" / "weights").write_text("x")
    with pytest.raises(TrainingFailed, match="changed"):
        load_resume_point(plan(tmp_path, resume_from=path))


def test_errors_become_a_reason_and_what_to_change() -> None:
    memory = failed_event(RuntimeError("CUDA out of memory. Tried to allocate 2 GiB\nlong text"), 4)
    assert (memory.category, memory.step) == ("memory", 4)
    assert memory.message == "out of memory in step 5: CUDA out of memory. Tried to allocate 2 GiB"
    assert "gradient_accumulation" in str(memory.fix)
    assert failed_event(ValidationError("too few rows", hint="add rows"), 0).category == "data"
    bug = failed_event(KeyError("x"), 0)
    assert bug.category == "bug"
    assert "KeyError" in str(bug.traceback)
