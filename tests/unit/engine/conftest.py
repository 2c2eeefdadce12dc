"""Plans, rows and a way to run them, for the engine's tests."""

from pathlib import Path

import pytest

from osmosis.engine.evaluate import Evaluation
from osmosis.engine.load_agent import load_agent, load_scorers
from osmosis.llm import open_model
from osmosis.records.run.plan import EvalPlan, ModelSpec, Retry
from osmosis.records.run.rows import Row

HERE = Path(__file__).parent


def _plan(**changes):
    given = {
        "name": "t",
        "agent": "helpers_agents:chat",
        "model": ModelSpec.parse("offline/calculator"),
        "dataset": "d.jsonl",
        "concurrency": 8,
        "retry": Retry(max_attempts=2, base_delay_s=0.001, max_delay_s=0.002),
    }
    return EvalPlan(**{**given, **changes})


def _rows(count, **data):
    return [
        Row(index=i, data={"user_prompt": f"What is {i} * 7?", "ground_truth": str(i * 7), **data})
        for i in range(count)
    ]


@pytest.fixture
def make_plan():
    return _plan


@pytest.fixture
def make_rows():
    return _rows


@pytest.fixture
def run():
    """`await run(plan, rows, scores=[...], journal=...)` gives the report."""

    async def go(plan, rows, *, scores=("exact",), agent=None, **more):
        model = open_model(plan.model, retry=plan.retry, timeout_s=plan.timeouts.model_s)
        found = load_agent(agent or plan.agent, HERE, grader=more.pop("grader", None))
        paths = [f"helpers_agents:{name}" for name in scores]
        scorers = load_scorers(paths, HERE, timeout_s=plan.timeouts.score_s)
        more = {"hashes": {"agent": "a", "sampling": "s", "score": "f"}, **more}
        try:
            agent = found.bind(plan)
            return await Evaluation(plan, rows, agent, model=model, scorers=scorers, **more).run()
        finally:
            await model.close()

    return go
