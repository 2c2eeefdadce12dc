"""`[export]` of a config."""

from __future__ import annotations

import pytest

from osmosis.records.config.benchmark import BenchmarkConfig
from osmosis.records.config.check import check_config

EXPERIMENT = {"rollout": "r", "entrypoint": "main.py", "model_path": "offline/calculator", "dataset": "d"}


def check(kind: str, **export: object) -> list[tuple[str, str, str]]:
    config, issues = check_config(kind, {"experiment": EXPERIMENT, "secrets": {"required": []}, "export": export})
    assert (config is None) == bool(issues)
    return [(issue.key, issue.what, issue.fix) for issue in issues]


def test_targets_are_tools_with_addresses_of_their_kind() -> None:
    assert check("eval", targets=["mlflow:http://h:5000", "tensorboard:out", "trackio", "weave:team/p", "otlp"]) == []
    key = "export.targets"
    assert check("eval", targets=["mlfow"]) == [(key, "mlfow names no tool to export to", "did you mean mlflow?")]
    wrong = check("eval", targets=["mlflow:sqlite:///x.db", "weave"])
    assert wrong[0][1] == "mlflow:sqlite:///x.db is not mlflow:https://HOST"
    assert wrong[1][1] == "weave is not weave:ENTITY/PROJECT"
    assert check("eval", targets=["wandb"], api_key="x")[0][1] == "unknown key api_key in [export]"


@pytest.mark.parametrize("tool", ["otlp", "langfuse", "weave:team/p"])
def test_a_training_run_has_curves_and_no_traces(tool: str) -> None:
    ((_, problem, fix),) = check("training", targets=[tool, "wandb"])
    assert problem == f"{tool.partition(':')[0]} takes traces of evaluations, and a training run has curves"
    assert fix == "one of mlflow, tensorboard, trackio, wandb"


def test_each_agent_of_a_benchmark_is_exported() -> None:
    agent = {"model": {"type": "provider", "model": "offline/calculator"}}
    table = {"targets": ["tensorboard"], "content": True}
    tables = {"experiment": {"benchmark": "b"}, "agents": [agent, agent], "export": table}
    config = BenchmarkConfig.model_validate(tables)
    exports = [evaluation.export for evaluation in config.evaluations()]
    assert [(export.targets, export.content) for export in exports if export] == [(["tensorboard"], True)] * 2
