from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from osmosis.engine.build_rollout import REWARD, add_info, add_sample, build_rollout
from osmosis.engine.rollout_model import RolloutModel
from osmosis.engine.task import Task
from osmosis.records.protocol.messages import RolloutState
from osmosis.records.run.plan import EvalPlan
from osmosis.records.run.rollout import Phase, Rollout, Score
from osmosis.sdk.backend import LocalBackend, WorkflowTask


class Endpoint(Protocol):
    bearer: str

    @property
    def chat_completions_url(self) -> str: ...


class Endpoints(Protocol):
    def open_rollout(self, rollout_id: str, *, model: RolloutModel) -> Endpoint: ...

    def close_rollout(self, endpoint: Any) -> None: ...


@dataclass(frozen=True)
class WorkflowAgent:
    backend: LocalBackend
    plan: EvalPlan
    endpoints: Endpoints | None = None

    async def run(self, task: Task, model: RolloutModel) -> Rollout:
        def on_state(state: RolloutState) -> None:
            task.enter({"grading": "score", "running": "agent"}.get(state, state))
            if state == "running":
                model.deadline.restart()
            else:
                model.deadline.stop()

        row = task.row
        with self._open_endpoint(task, model) as (url, key):
            attempt = WorkflowTask(
                row.messages(),
                row.ground_truth,
                row.data if row.metadata is None else row.metadata,
                task.rollout_id,
                chat_completions_url=url,
                api_key=key,
                grader_timeout_s=self.plan.timeouts.score_s,
            )
            done = await self.backend.run(attempt, ask=model.ask, on_state=on_state)
        model.queued_ms += done.queue_ms
        is_score_failure = done.err_phase is Phase.SCORE
        rollout = build_rollout(
            task,
            model,
            done.sample.messages if done.sample else None,
            failure=None if is_score_failure else done.failure,
        )
        add_info(rollout, done.info)
        if done.sample is not None:
            add_sample(rollout, done.sample, graded=done.status == "success")
        if is_score_failure and done.failure is not None:
            rollout.scores[REWARD] = Score(name=REWARD, failure=done.failure)
        return rollout

    @contextmanager
    def _open_endpoint(self, task: Task, model: RolloutModel) -> Iterator[tuple[str, str]]:
        if self.endpoints is None:
            yield "", ""
            return
        endpoint = self.endpoints.open_rollout(task.rollout_id, model=model)
        try:
            yield endpoint.chat_completions_url, endpoint.bearer
        finally:
            self.endpoints.close_rollout(endpoint)
