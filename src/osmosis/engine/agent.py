import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import orjson

from osmosis.base.jsonable import JsonObject, copy_json, to_valid_text
from osmosis.engine.journal import Journal, key_of
from osmosis.engine.rollout_model import REWARD, RolloutModel, add_info, add_sample, build_rollout, read_reward
from osmosis.engine.task import Task
from osmosis.errors import NotFound
from osmosis.llm.model import STREAMING, ChatRequest
from osmosis.records.protocol.messages import RolloutState
from osmosis.records.protocol.v02 import RolloutMetrics, RolloutRequest
from osmosis.records.run.plan import EvalPlan
from osmosis.records.run.rollout import Failure, Message, Phase, Rollout, Score
from osmosis.records.run.rows import Key
from osmosis.sdk.agent_loop import CompletionsResult, RolloutAgentLoop, RolloutContext, RolloutResult
from osmosis.sdk.backend import LocalBackend, WorkflowTask
from osmosis.sdk.classify import agent_error
from osmosis.sdk.messages import Prompts


class Agent(Protocol):
    """Attempts tasks: an agent loop, a workflow, a rollout server, a recording, a program.

    The engine runs many tasks at once through one instance; whoever opens it closes what it needs. `task` is the row,
    the attempt and the rollout's id; `task.enter(stage)` says what it does now. `model` is this rollout's own: ask it
    with `model.ask(request)`, or hand it to whatever answers for it (`ModelProxy.open_rollout`). It counts calls, keeps
    the plan's limits and holds the time limit (`model.deadline`: `restart()` after a queue, `stop()` when limited
    elsewhere). Return `build_rollout(task, model, messages, failure=...)`, with a reward of the agent's own in
    `scores["reward"]`. What `run` raises is the rollout's failure (`sdk.classify.failure_of`). Retries of model calls,
    sandbox, scores, hashes and the journal are not the agent's business."""

    async def run(self, task: Task, model: RolloutModel) -> Rollout: ...


DEFAULT_MAX_TOKENS_TOTAL = 8192


@dataclass(frozen=True)
class LoopAgent:
    loop: RolloutAgentLoop
    plan: EvalPlan

    async def run(self, task: Task, model: RolloutModel) -> Rollout:
        request = self._request(task)
        tools = self.loop.get_tools(request)
        context = RolloutContext(
            request=request,
            tools=tools,
            llm=_LoopModel(model, tools),
            _start_time=time.monotonic(),
            prompts=Prompts(type(self.loop)),
        )
        result: object = await self.loop.run(context)
        failure = _find_failure(result)
        done = result if isinstance(result, RolloutResult) else None
        rollout = build_rollout(
            task,
            model,
            done.final_messages if done is not None else None,
            failure=failure,
            finish_reason=done.finish_reason if done is not None else None,
            num_tool_calls=context._num_tool_calls,
        )
        if done is not None and failure is None and done.reward is not None:
            rollout.scores[REWARD] = read_reward(done.reward)
        return rollout

    def _request(self, task: Task) -> RolloutRequest:
        own = {"row_index": task.row.index, "execution_mode": "eval", "run_index": task.attempt}
        # Not checked: what a loop receives is of generation 0.2's wire, whose rules (a limit on metadata) are not ours.
        return RolloutRequest.model_construct(
            rollout_id=task.rollout_id,
            server_url="",
            messages=task.row.messages(),
            completion_params=dict(self.plan.model.params),
            tool_server_url=None,
            max_turns=self.plan.max_turns,
            max_tokens_total=self.plan.max_tokens_total or DEFAULT_MAX_TOKENS_TOTAL,
            metadata={**copy_json(task.row.data), **own},
            api_key=None,
            idempotency_key=None,
        )


class _LoopModel:
    def __init__(self, model: RolloutModel, tools: object) -> None:
        self._model = model
        self._tools = plain_tools(tools)

    async def chat_completions(self, messages: list[Message], **kwargs: object) -> CompletionsResult:
        """Call the model once; `tools` replaces the rollout's own, other arguments are sampling parameters."""
        tools = plain_tools(kwargs.pop("tools")) if "tools" in kwargs else self._tools
        on_piece = kwargs.pop("on_piece", None)
        params = {name: value for name, value in kwargs.items() if name not in STREAMING}
        request = ChatRequest(messages, tools, params, on_piece=on_piece if callable(on_piece) else None)
        return CompletionsResult.of(await self._model.ask(request))

    def get_metrics(self) -> RolloutMetrics:
        usage, calls = self._model.usage, self._model.calls
        return RolloutMetrics(
            total_latency_ms=0.0,
            llm_latency_ms=sum(call.duration_ms for call in calls),
            tool_latency_ms=0.0,
            num_llm_calls=len(calls),
            num_tool_calls=0,
            prompt_tokens=usage.prompt_tokens,
            response_tokens=usage.completion_tokens,
            max_context_tokens=max((call.usage.total_tokens for call in calls), default=0),
        )


def plain_tools(tools: Any) -> list[JsonObject] | None:
    if not tools:
        return None
    return [tool if isinstance(tool, dict) else tool.model_dump(mode="json", exclude_none=True) for tool in tools]


def _find_failure(result: object) -> Failure | None:
    if not isinstance(result, RolloutResult):
        problem = f"run() returned {type(result).__name__} instead of a RolloutResult"
        return agent_error(problem, "return ctx.complete(messages) or ctx.error(message)")
    if not isinstance(result.final_messages, list) or not all(isinstance(m, dict) for m in result.final_messages):
        result.final_messages = []
        return agent_error("final_messages is not a list of messages")
    if str(getattr(result.status, "value", result.status)).upper() == "COMPLETED":
        return None
    message = to_valid_text(str(result.error_message or "the agent returned status ERROR without a reason"))
    return agent_error(message[:2000])


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
    artifacts: Path | None = None

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
                artifact_root=self.artifacts,
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


class RecordedRollouts:
    def __init__(self, folder: Path) -> None:
        journal = Journal(folder)
        self.path = journal.rollouts_path
        if not self.path.exists():
            raise NotFound(f"there are no recorded rollouts in {folder}", hint="give the name of a run")
        self.offsets = {key_of(line): offset for line, offset in journal.positions()}

    def read(self, key: Key) -> Rollout:
        with self.path.open("rb") as lines:
            lines.seek(self.offsets[key])
            return Rollout.model_validate(orjson.loads(lines.readline()))


class RecordedAgent:
    """Answers each task with the stored rollout, without the scores of score functions; its own reward is kept."""

    def __init__(self, folder: Path) -> None:
        self._rollouts = RecordedRollouts(folder)

    async def run(self, task: Task, model: RolloutModel) -> Rollout:
        rollout = self._rollouts.read(task.key)
        rollout.scores = {name: score for name, score in rollout.scores.items() if name == REWARD}
        return rollout


class AnsweredAgent:
    def __init__(self, texts: Mapping[int, str]) -> None:
        self._texts = texts

    async def run(self, task: Task, model: RolloutModel) -> Rollout:
        return build_rollout(task, model, [{"role": "assistant", "content": self._texts[task.row.index]}])
