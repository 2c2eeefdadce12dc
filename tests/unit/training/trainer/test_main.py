"""The trainer where its libraries are missing, and called wrongly: it says so to the job, and to a person."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from osmosis.training.protocol.plans import TrainerPlan
from osmosis.training.trainer.__main__ import USAGE, train
from osmosis.training.trainer.service import TrainerService


def test_an_engine_without_its_library_says_which_extra_has_it(tmp_path: Path) -> None:
    plan = TrainerPlan(
        run="r", engine="tinker", engine_url="http://127.0.0.1:9", model_path="m", output_dir=str(tmp_path),
        rows=[0, 1], steps=1, rows_per_step=1, samples_per_row=2, max_prompt_length=9, max_response_length=9, lr=1e-3,
    )  # fmt: skip
    failed = train(plan, TrainerService("r", tmp_path / "s"))
    assert failed.type == "failed"
    assert failed.category == "engine"
    assert "needs tinker, which the trainer's environment does not have" in failed.message
    assert "`tinker`" in str(failed.fix)


def test_a_wrong_call_is_usage_and_a_bad_plan_is_named(tmp_path: Path) -> None:
    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "osmosis.training.trainer", *arguments]
        return subprocess.run(command, capture_output=True, text=True)

    assert (call().returncode, call().stderr.strip()) == (2, USAGE)
    (tmp_path / "plan.json").write_text("{}")
    bad = call(str(tmp_path / "plan.json"), str(tmp_path / "s"))
    assert bad.returncode == 2
    assert "max_response_length" in bad.stderr
