"""The deadline of a step's last rollouts: once nine in ten of those that began together have ended, the others have
`straggler_timeout_s` left. What is cut off then is a failure of category timeout, with what was sampled so far."""

import asyncio
import math
from collections.abc import Callable

from osmosis.base.processes import end_tasks, wait_for_first
from osmosis.engine.agent import Agent
from osmosis.engine.build_rollout import build_rollout
from osmosis.engine.rollout_model import RolloutModel
from osmosis.engine.task import Task
from osmosis.records.run.rollout import Category, Failure, Phase, Rollout

SHARE = 0.9
CUT_OFF = "cut off as a straggler"


class StragglerAgent:
    def __init__(self, agent: Agent, count: int, timeout_s: float, on_cut: Callable[[int], None]) -> None:
        self._agent = agent
        self._count = count
        self._timeout_s = timeout_s
        self._on_cut = on_cut
        self._ended = 0
        self._late = asyncio.Event()

    async def run(self, task: Task, model: RolloutModel) -> Rollout:
        running = asyncio.create_task(self._agent.run(task, model))
        late = asyncio.create_task(self._late.wait())
        try:
            await wait_for_first(running, late)
            if running.done():
                return running.result()
        finally:
            await end_tasks(running, late)
            self._ended += 1
            if self._ended == max(1, math.floor(SHARE * self._count)):
                asyncio.get_running_loop().call_later(self._timeout_s, self._cut)
        failure = Failure(
            phase=Phase.AGENT,
            category=Category.TIMEOUT,
            message=f"{CUT_OFF}: nine in ten rollouts of its step had ended {self._timeout_s:g} s before",
            fix="raise [advanced].straggler_timeout_s, or look for calls that block or never return",
        )
        return build_rollout(task, model, failure=failure)

    def _cut(self) -> None:
        if self._ended < self._count:
            self._on_cut(self._count - self._ended)
            self._late.set()
