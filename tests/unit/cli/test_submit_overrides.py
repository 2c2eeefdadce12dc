"""Flags over a config: what they change, what they leave, and that its own rules still hold."""

from __future__ import annotations

import pytest

from osmosis.cli.eval.flags import RunFlags
from osmosis.cli.eval.plan import config_model
from osmosis.cli.eval.submit_checks import SubmitOptions
from osmosis.errors import UsageError
from osmosis.records.config.run_config import EvalConfig, TrainingConfig

CONFIG = {
    "experiment": {"rollout": "r", "entrypoint": "main.py", "model_path": "mine", "dataset": "d"},
    "evaluation": {"n": 3, "limit": 50},
    "advanced": {"base_url": "http://127.0.0.1:9/v1", "api_key_env": "KEY", "params": {"temperature": 0.5}},
    "secrets": {"required": ["KEY"]},
}


def changed(**given: object) -> EvalConfig:
    found = SubmitOptions("eval", None, **given).apply(EvalConfig.model_validate(CONFIG))
    assert isinstance(found, EvalConfig)
    return found


def test_nothing_given_changes_nothing() -> None:
    config = EvalConfig.model_validate(CONFIG)
    assert SubmitOptions("eval", None, name="x").apply(config) is config


def test_what_is_given_wins_and_the_rest_stays() -> None:
    found = changed(n=1, limit=7)
    assert (found.evaluation.n, found.evaluation.limit) == (1, 7)
    assert found.advanced == EvalConfig.model_validate(CONFIG).advanced


@pytest.mark.parametrize(
    ("flags", "name", "base_url", "key"),
    [
        ({"model": "other"}, "other", "http://127.0.0.1:9/v1", "KEY"),
        ({"model": "openai/gpt-5-mini"}, "openai/gpt-5-mini", "http://127.0.0.1:9/v1", "KEY"),
        ({"model": "other@http://127.0.0.1:8/v1"}, "other", "http://127.0.0.1:8/v1", None),
        ({"model": "other", "base_url": "http://127.0.0.1:8/v1"}, "other", "http://127.0.0.1:8/v1", None),
        ({"base_url": "http://127.0.0.1:8/v1"}, "mine", "http://127.0.0.1:8/v1", None),
        ({"model": "openai/gpt-5-mini", "base_url": "none"}, "openai/gpt-5-mini", None, None),
        ({"model": "offline/calculator"}, "offline/calculator", None, None),
    ],
)
def test_another_model_is_asked_at_the_configs_endpoint_unless_said(
    flags: dict[str, str], name: str, base_url: str | None, key: str | None
) -> None:
    config = changed(**flags)
    assert (config.experiment.model_path, config.advanced.base_url, config.advanced.api_key_env) == (
        name,
        base_url,
        key,
    )
    assert config.advanced.params == {"temperature": 0.5}
    run_flags = RunFlags(model=flags.get("model"), base_url=flags.get("base_url"))
    spec = config_model(EvalConfig.model_validate(CONFIG), run_flags)
    assert (spec.name, spec.base_url, spec.api_key_env) == (name, base_url, key)


def test_the_configs_rules_hold_for_flags() -> None:
    with pytest.raises(UsageError, match="--n"):
        changed(n=0)
    with pytest.raises(UsageError, match="the model name is empty"):
        changed(model=" ")
    training = {**CONFIG, "evaluation": None}
    config = TrainingConfig.model_validate({k: v for k, v in training.items() if k in ("experiment", "secrets")})
    assert SubmitOptions("training", None, model="tiny").apply(config).experiment.model_path == "tiny"
