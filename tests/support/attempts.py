"""One attempt, as the engine's loop makes it."""

from __future__ import annotations

from osmosis.engine.agent import Agent
from osmosis.engine.evaluate import Attempts
from osmosis.engine.task import Task
from osmosis.llm.model import Model
from osmosis.records.run.plan import EvalPlan
from osmosis.records.run.rollout import Rollout


async def run_attempt(agent: Agent, model: Model | None, plan: EvalPlan, task: Task) -> Rollout:
    return await Attempts(plan, agent, model, (), say=print).run(task)
