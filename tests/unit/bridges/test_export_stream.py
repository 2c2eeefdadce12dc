"""The records of a run, read while other code writes them."""

from __future__ import annotations

import json
from pathlib import Path

from osmosis.bridges.export_stream import EvaluationStream, ExportedRun, TrainingStream, read_lines, stored_run
from osmosis.engine.journal import Journal
from osmosis.records.run.plan import EvalPlan, ModelSpec
from osmosis.records.run.rollout import Rollout, RolloutStatus, Score
from osmosis.training.step_journal import MetricsFile

PLAN = EvalPlan(name="nightly", agent="a:b", model=ModelSpec(name="offline/calculator", kind="offline"), dataset="d")


def make_rollout(number: int, value: float) -> Rollout:
    score = Score(value, parts={"format": 1.0}, name="reward")
    return Rollout(
        rollout_id=f"r{number}",
        row_index=number,
        row_key=f"row-{number}",
        attempt=0,
        status=RolloutStatus.SUCCESS,
        messages=[{"role": "user", "content": "what?"}, {"role": "assistant", "content": "that"}],
        scores={"reward": score},
        duration_ms=500,
    )


def test_lines_are_read_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"1\n2\n3")
    with path.open("rb") as file, path.open("ab") as more:
        assert read_lines(file, 1) == [b"1\n"]
        assert read_lines(file, 9) == [b"2\n"]
        more.write(b"3\n")
        more.flush()
        assert read_lines(file, 9) == [b"33\n"]


def test_an_evaluation_is_a_point_a_rollout(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.open(PLAN)
    run = stored_run(journal)
    assert (run.name, run.params["model.name"], run.id) == ("nightly", "offline/calculator", stored_run(journal).id)
    stream = EvaluationStream(run)
    assert stream.read(is_last=False) == ([], [])
    journal.append_all([make_rollout(0, 1.0), make_rollout(1, 0.0)])
    points, rollouts = stream.read(is_last=False)
    assert [point.step for point in points] == [1, 2]
    assert points[1].values["mean/reward"] == 0.5
    assert points[1].values["rollout/reward.format"] == 1.0
    assert points[0].at == rollouts[0].started_at.timestamp() + 0.5
    journal.append(make_rollout(2, 1.0))
    journal.close()
    points = stream.read(is_last=True).points
    assert [(point.step, round(point.values["mean/reward"], 3)) for point in points] == [(3, 0.667)]
    figures, rows = stream.summarize()
    assert round(figures["reward/mean"], 3) == 0.667
    assert "answer" not in rows[0]
    assert EvaluationStream(run.model_copy(update={"content": True})).summarize()[1][0]["answer"] == "that"


def test_a_training_step_comes_once_whole_and_in_order(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    stream = TrainingStream(ExportedRun(kind="training", folder=str(tmp_path), id="x", name="x", params={}))
    metrics.add(0, {"eval/validation/reward": 0.1})
    metrics.add(1, {"rollout/raw_reward": 0.2})
    metrics.add(2, {"rollout/raw_reward": 0.3})  # the rollouts of the next step, while the first one is trained
    assert not stream.read(is_last=False)[0]
    metrics.add(1, {"train/loss": 0.5, "perf/update_s": 1.0})
    assert [point.step for point in stream.read(is_last=False)[0]] == [0]
    metrics.add(1, {"eval/validation/reward": 0.4})
    metrics.add(2, {"perf/update_s": 1.0})
    (first,) = stream.read(is_last=False)[0]
    assert first.step == 1
    assert list(first.values) == ["rollout/raw_reward", "train/loss", "perf/update_s", "eval/validation/reward"]
    assert first.at == json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[1])["at"]
    metrics.add(1, {"perf/update_s": 3.0})  # done again after a crash
    metrics.add(3, {"rollout/raw_reward": 0.9})  # never trained on
    assert [point.step for point in stream.read(is_last=True)[0]] == [2]
    assert not stream.read(is_last=True)[0]
