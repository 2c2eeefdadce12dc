"""What a config may say, checked on the record itself: the same class runs locally, on the platform and in a job."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from osmosis.records.config import EvalConfig, TrainingConfig

EXPERIMENT = {"rollout": "multiply", "entrypoint": "main.py", "model_path": "openai/gpt-5-mini", "dataset": "multiply"}


def eval_config(**tables: Any) -> EvalConfig:
    return EvalConfig.model_validate({"experiment": EXPERIMENT, "secrets": {"required": []}, **tables})


def test_omitted_keys_take_the_documented_defaults() -> None:
    config = eval_config()
    assert config.evaluation.limit is None
    assert (config.evaluation.n, config.evaluation.batch_size, config.evaluation.pass_threshold) == (1, 1, 1.0)
    assert (config.evaluation.agent_workflow_timeout_s, config.evaluation.grader_timeout_s) == (450, 150)
    training = TrainingConfig.model_validate({"experiment": EXPERIMENT}).training
    assert (training.lr, training.total_epochs, training.n_samples_per_prompt) == (1e-6, 1, 8)
    assert (training.rollout_batch_size, training.max_prompt_length, training.max_response_length) == (32, 8192, 8192)


def test_secrets_are_mandatory_for_eval_and_optional_for_training() -> None:
    with pytest.raises(ValidationError, match="secrets"):
        EvalConfig.model_validate({"experiment": EXPERIMENT})
    assert TrainingConfig.model_validate({"experiment": EXPERIMENT}).secret_names() == []
    with pytest.raises(ValidationError, match="required"):
        TrainingConfig.model_validate({"experiment": EXPERIMENT, "secrets": {}})


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"evaluation": {"n": "x"}}, "valid integer"),
        ({"evaluation": {"n": 0}}, "greater than or equal to 1"),
        ({"evaluation": {"nn": 3}}, "Extra inputs"),
        ({"evaluation": {"pass_threshold": float("nan")}}, "finite"),
        ({"experiment": {**EXPERIMENT, "rollout": "../other"}}, "one directory name"),
        ({"experiment": {**EXPERIMENT, "entrypoint": "../main.py"}}, "inside the rollout"),
        ({"experiment": {**EXPERIMENT, "entrypoint": "/etc/passwd"}}, "inside the rollout"),
        ({"experiment": {**EXPERIMENT, "commit_sha": "xyz"}}, "7 to 40 hexadecimal"),
        ({"experiment": {**EXPERIMENT, "commit_sha": "abc1234", "branch": "main"}}, "exclude each other"),
        ({"experiment": {**EXPERIMENT, "branch": "a b"}}, "without whitespace"),
        ({"env": {"lower": "x"}}, "not a variable name"),
        ({"env": {"TRAILING\n": "x"}}, "not a variable name"),
        ({"env": {"_OSMOSIS_X": "x"}}, "reserved"),
        ({"env": {"A": 1}}, "valid string"),
        ({"secrets": {"required": ["lower"]}}, "not a secret name"),
        ({"secrets": {"required": ["A", "A"]}}, "named twice: A"),
        ({"secrets": {"required": ["A"]}, "env": {"A": "x"}}, "at once: A"),
        ({"kind": "eval"}, "Extra inputs"),
    ],
)
def test_what_a_config_must_not_say(tables: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        eval_config(**tables)


def test_advanced_keeps_unknown_keys() -> None:
    assert eval_config(advanced={"backend_flag": 3}).to_dict()["advanced"]["backend_flag"] == 3
