"""Runs a rendered rollout for the tests: its own server process, the stand-in model behind a gate, the one loop."""

from __future__ import annotations

import os
from pathlib import Path

from osmosis.datasets.scan import read_rows
from osmosis.engine.evaluate import evaluate
from osmosis.llm import open_model
from osmosis.records.plan import EvalPlan, ModelSpec, Selection
from osmosis.records.report import Report
from osmosis.serve.drive.client import served
from osmosis.serve.drive.process import RolloutServerProcess
from osmosis.serve.drive.traingate import TrainGate
from osmosis.workspace.config_file import load_eval_config


async def run_rollout(root: Path, name: str, python: Path, *, limit: int = 8) -> tuple[Report, str]:
    """The report of a small evaluation of `rollouts/<name>`, and what its server printed."""
    config, _ = load_eval_config(root / "configs" / "eval" / f"{name}.toml", root)
    plan = EvalPlan(
        name=name,
        agent=f"rollouts/{name}/main.py",
        model=ModelSpec.parse(config.experiment.model_path),
        dataset=str(root / "data" / f"{name}.jsonl"),
        selection=Selection(limit=limit),
        attempts=config.evaluation.n,
        concurrency=4,
    )
    said: list[str] = []
    folder = root / "rollouts" / name
    server = RolloutServerProcess([str(python), "main.py"], folder, dict(os.environ), log=said.append)
    model = open_model(plan.model)
    gate = TrainGate(model)
    try:
        await gate.start()
        url = await server.start()
        async with served(url, gate, plan) as rollout_fn:
            rows = read_rows(Path(plan.dataset), plan.selection)
            report = await evaluate(plan, rows, rollout_fn)
    finally:
        await server.stop()
        await gate.stop()
        await model.close()
    return report, "\n".join(said)
