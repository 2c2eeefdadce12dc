"""Training runs over the wire: what is accepted, what is refused."""

from __future__ import annotations

from typing import Any

from osmosis.platform import tables
from osmosis.records.config import TrainingConfig

EXPERIMENT = {"rollout": "multiply", "entrypoint": "main.py", "model_path": "Qwen/Qwen3-0.6B", "dataset": "sums"}


def submit(site, expect: int = 200, **tables_: Any) -> dict[str, Any]:
    return site.json("POST", "training-runs", expect=expect, json={"experiment_config": EXPERIMENT, **tables_})


def test_a_training_run_is_accepted_with_all_its_rows(ready) -> None:
    sent = {"training_config": {"rollout_batch_size": 4}, "checkpoints_config": {"keep": 2}}
    answer = submit(ready, **sent, advanced_config={"lora_rank": 8})
    assert (answer["name"], answer["status"], answer["sampled_rows"]) == ("multiply-1", "pending", 40)
    with ready.platform.db.read() as session:
        stored = TrainingConfig.model_validate(session.get_one(tables.Run, answer["id"]).config)
    assert (stored.training.rollout_batch_size, stored.checkpoints.keep, stored.advanced.lora_rank) == (4, 2, 8)
    assert [row["name"] for row in ready.json("GET", "training-runs")["training_runs"]] == ["multiply-1"]


def test_what_a_training_config_must_not_say_is_refused_by_its_key(shared) -> None:
    refused = submit(shared, expect=400, training_config={"lr": "x"}, advanced_config={"lora_rnk": 3})
    found = {issue["key"]: issue for issue in refused["issues"]}
    assert set(found) == {"training.lr", "advanced.lora_rnk"}
    assert found["advanced.lora_rnk"]["key_correction"] == "advanced.lora_rank"
    shared.json("GET", "training-runs/nowhere", expect=404)
