import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field

from osmosis.datasets.scan import read_groups, row_hash
from osmosis.engine.agent import Agent
from osmosis.engine.rollout_model import RolloutModel, build_rollout
from osmosis.engine.scoring import Scorer
from osmosis.engine.task import LoopUse, Task
from osmosis.llm.cache import BranchModel
from osmosis.llm.model import Model
from osmosis.metrics.warnings import answer_issue
from osmosis.records.run.plan import EvalPlan
from osmosis.records.run.rollout import Failure, Phase, Rollout, RolloutStatus, Score, Usage, user_metrics
from osmosis.records.run.rows import Row
from osmosis.sdk.classify import failure_of, overrun, self_cancelled
from osmosis.sdk.messages import changed_prompts
from osmosis.sdk.sandbox import begin_sandbox, opening_of
from osmosis.sdk.user_code import LimitReached, left_behind, loop_user, tool_time_limit

_NAMED = 3


@dataclass(eq=False)
class Attempts:
    plan: EvalPlan
    agent: Agent | None
    model: Model | None
    scorers: Sequence[Scorer]
    _: KW_ONLY
    hashes: Mapping[str, str] | None = None
    say: Callable[[str], None]
    active: set[Task] = field(default_factory=set)
    loop_use: LoopUse = field(default_factory=LoopUse)
    cutting: bool = False
    left_behind: int = 0

    async def run(self, task: Task) -> Rollout:
        if self.plan.branch is not None:
            task.row = self.plan.branch.change_row(task.row)
            changed_prompts.set(self.plan.branch.texts)
        rollout = await self._run_once(task)
        for number in range(1, self.plan.retry.rollouts + 1):
            if rollout.failure is None or self.cutting:
                break
            self.say(f"{task.name} failed ({rollout.failure.category.value}); run again, {number}")
            spent, users = rollout.usage, rollout.user_usage
            again = Task(task.row, task.attempt, f"{task.rollout_id}-{number}", task.step, on_enter=task.on_enter)
            rollout = await self._run_once(again)
            rollout.usage, rollout.metrics["retries"] = spent + rollout.usage, float(number)
            if users is not None:
                rollout.metrics |= user_metrics(users + (rollout.user_usage or Usage()))
        return rollout

    async def _run_once(self, task: Task) -> Rollout:
        self.active.add(task)
        task.loop_use = self.loop_use
        loop_user.set(task)
        left_behind.set(task.left_behind)
        tool_time_limit.set(self.plan.timeouts.tool_s)
        sandbox = begin_sandbox(lambda: opening_of(self.plan.sandbox)())
        try:
            rollout = await self._run_agent(task)
            if isinstance(self.model, BranchModel):
                self.model.finish(task.rollout_id, rollout)
            if self.scorers and rollout.status is RolloutStatus.SUCCESS:
                task.enter("score")
                scores = await self._score(rollout, task.row)
                # In the order given, and before a reward of the rollout's own.
                rollout.scores = {**{score.name: score for score in scores}, **rollout.scores}
        finally:
            self.active.discard(task)
            if sandbox.detach():
                await sandbox.close()
        for name in task.left_behind:
            self.left_behind += 1
            count = f" ({self.left_behind} in this run)" if self.left_behind > 1 else ""
            self.say(f"{task.name}: {name} ignored its cancellation and was left behind{count}")
        row = task.row
        rollout.step, rollout.row_key, rollout.row_index = task.step, row.key, row.index
        if rollout.status is RolloutStatus.SUCCESS:
            rollout.answer_issue = answer_issue(rollout.messages, rollout.finish_reason)
        if self.plan.group_by:
            rollout.groups = read_groups(row.data, self.plan.group_by)
        if self.hashes:
            rollout.hashes = {**self.hashes, "row": row.content_hash or row_hash(row.data)}
        return rollout

    def describe_active(self) -> str:
        now = time.monotonic()
        longest = sorted(self.active, key=lambda task: task.since)
        parts = [f"{task.name} in {task.stage!r} for {now - task.since:.0f} s" for task in longest[:_NAMED]]
        if len(longest) > _NAMED:
            parts.append(f"{len(longest) - _NAMED} more")
        return ", ".join(parts)

    async def _run_agent(self, task: Task) -> Rollout:
        assert self.agent is not None
        model = RolloutModel(self.model, task, self.plan)
        task.enter("agent")
        try:
            return await model.deadline.run(self.agent.run(task, model), "the agent")
        except asyncio.CancelledError:
            if self.cutting:
                raise
            failure: Failure | None = self_cancelled()
        except LimitReached:
            failure = None
        except Exception as error:  # noqa: BLE001 - one rollout, and not the others: an agent may raise anything
            failure = _overrun(model, task) if model.deadline.fired else failure_of(error, Phase.AGENT)
        return build_rollout(task, model, failure=failure)

    async def _score(self, rollout: Rollout, row: Row) -> list[Score]:
        if len(self.scorers) == 1:
            return list(await self.scorers[0].score(rollout, row))
        results = await asyncio.gather(*(scorer.score(rollout, row) for scorer in self.scorers))
        return [score for scores in results for score in scores]


def _overrun(model: RolloutModel, task: Task) -> Failure:
    failure = overrun(model.deadline.seconds or 0.0)
    if task.left_behind:
        failure.message += ", ignored its cancellation, and was left behind"
        failure.fix = "let asyncio.CancelledError pass: catch Exception, not BaseException, around what is awaited"
    elif task.held_s:
        failure.message += f", and blocked the event loop for {task.held_s:.1f} s"
        failure.fix = "await what takes long, or hand it to asyncio.to_thread"
    return failure


def failed_rollout(task: Task, failure: Failure) -> Rollout:
    return Rollout(
        rollout_id=task.rollout_id,
        row_index=task.row.index,
        attempt=task.attempt,
        status=RolloutStatus.FAILED,
        messages=task.row.messages(),
        failure=failure,
    )
