"""Runs a rendered rollout for the tests: its own server process, the stand-in model behind a gate, the one loop."""

import os
from pathlib import Path

from osmosis.datasets.scan import read_rows
from osmosis.engine.evaluate import Evaluation
from osmosis.engine.load_agent import LoadedAgent, agent_of
from osmosis.llm import open_model
from osmosis.records.run.plan import EvalPlan, ModelSpec, Selection
from osmosis.records.run.report import Report
from osmosis.serve.client.model_proxy import ModelProxy
from osmosis.serve.client.remote import ServerAt, served
from osmosis.serve.server_process import RolloutServerProcess
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
    gate = ModelProxy(model)
    try:
        await gate.open()
        url = await server.start()
        async with served(ServerAt(url), gate, plan) as agent:
            rows = read_rows(Path(plan.dataset), plan.selection)
            report = await Evaluation(plan, rows, agent, model=model).run()
    finally:
        await server.stop()
        await gate.close()
        await model.close()
    return report, "\n".join(said)


def as_agent(target: object) -> LoadedAgent:
    """What `load_agent` makes of an object, without a module that names it."""
    return agent_of(target, type(target).__name__, Path.cwd())
