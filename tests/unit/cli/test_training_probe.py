"""The evaluation that `train submit --probe` runs: as training would ask the base model."""

from __future__ import annotations

from typing import Any

import pytest

from osmosis.cli.train import probe_config
from osmosis.errors import ValidationError
from osmosis.records.config.run_config import TrainingConfig


def config(**tables: Any) -> TrainingConfig:
    experiment = {"rollout": "multiply", "entrypoint": "main.py", "dataset": "d", "model_path": "tiny"}
    return TrainingConfig.model_validate({"experiment": experiment, **tables})


def test_it_asks_the_base_model_as_training_does() -> None:
    training = {"n_samples_per_prompt": 6, "max_response_length": 77, "agent_workflow_timeout_s": 9}
    made = probe_config(
        config(
            training=training,
            sampling={"rollout_temperature": 0.8},
            advanced={"network": "gate"},
            env={"LEVEL": "3"},
            secrets={"required": ["KEY"]},
        ),
        4,
    )
    assert made.experiment.model_path == "osmosis/tiny"
    asked = made.evaluation
    assert (asked.limit, asked.n, asked.batch_size, asked.agent_workflow_timeout_s) == (4, 6, 24, 9.0)
    assert made.advanced.params == {"temperature": 0.8, "top_p": 1.0, "max_tokens": 77}
    assert (made.advanced.network, made.env, made.secret_names()) == ("gate", {"LEVEL": "3"}, ["KEY"])
    assert type(made).from_request(made.to_request())[0] == made


@pytest.mark.parametrize(
    ("advanced", "said"),
    [
        ({"engine": "tinker", "base_url": "http://127.0.0.1:1"}, "base model on the platform"),
        ({"method": "sft", "from_run": "a-1"}, "makes no rollouts"),
    ],
)
def test_where_there_is_nothing_to_probe_it_says_so(advanced: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        probe_config(config(advanced=advanced), 4)
