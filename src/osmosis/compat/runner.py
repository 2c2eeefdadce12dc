"""A loop that raises or gives up is a result with its reason; tokens spent before are still counted."""

import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from osmosis.base.jsonable import JsonObject
from osmosis.compat.dataset_reader import ToolValidationError, dataset_row_to_request
from osmosis.compat.validator import FUNCTION_NAME
from osmosis.engine.evaluate import Evaluation, Observer
from osmosis.engine.rollout_model import RolloutModel
from osmosis.engine.scoring import Scorer
from osmosis.engine.task import Task
from osmosis.records.protocol.v02 import RolloutMetrics
from osmosis.records.run.plan import EvalPlan, ModelSpec, Timeouts
from osmosis.records.run.report import Report
from osmosis.records.run.rollout import Message, Rollout, RolloutStatus, Usage
from osmosis.records.run.rows import Row
from osmosis.sdk.agent_loop import CompletionsResult, RolloutAgentLoop, RolloutContext, RolloutResult
from osmosis.sdk.classify import agent_error, describe
from osmosis.sdk.user_code import run_user_code


class Client(Protocol):
    def set_tools(self, tools: list[Any]) -> None: ...

    def clear_tools(self) -> None: ...

    def reset_metrics(self) -> None: ...

    def get_metrics(self) -> RolloutMetrics: ...

    async def chat_completions(self, messages: list[Message], **kwargs: Any) -> CompletionsResult: ...


@dataclass
class LocalRunResult:
    row_index: int
    success: bool
    result: RolloutResult | None = None
    error: str | None = None
    duration_ms: float = 0.0
    token_usage: dict[str, int] = field(default_factory=dict)
    """`prompt_tokens`, `completion_tokens`, `total_tokens`, `num_llm_calls`."""


@dataclass
class LocalBatchResult:
    results: list[LocalRunResult]
    total: int
    passed: int
    failed: int
    total_duration_ms: float
    total_tokens: int


def validate_tools(tools: list[Any]) -> None:
    for tool in tools:
        function = (tool if isinstance(tool, dict) else tool.model_dump()).get("function")
        if not isinstance(function, dict):
            raise ToolValidationError("Tool validation error: a tool has no function")
        name = function.get("name")
        if not isinstance(name, str) or not FUNCTION_NAME.match(name):
            raise ToolValidationError(f"Tool validation error: {name!r} is not a valid function name")
        parameters = function.get("parameters") or {"type": "object"}
        if not isinstance(parameters, dict) or parameters.get("type") != "object":
            raise ToolValidationError(f"Tool validation error: the parameters of {name} do not have the type 'object'")


async def close_client(client: object) -> None:
    close = getattr(client, "close", None)
    if close is not None:
        await close()


class LocalRolloutRunner:
    """Runs rows through an agent loop with a client such as `ExternalLLMClient`; `debug` writes traces."""

    default_debug_dir = "./local_debug"
    default_prefix = "local"

    def __init__(
        self,
        agent_loop: RolloutAgentLoop,
        llm_client: Client,
        debug: bool = False,
        debug_dir: str | os.PathLike[str] | None = None,
        rollout_id_prefix: str | None = None,
        request_metadata: Mapping[str, object] | None = None,
    ) -> None:
        self.agent_loop = agent_loop
        self.llm_client = llm_client
        self.debug_dir = (debug_dir or self.default_debug_dir) if debug else None
        self.rollout_id_prefix = rollout_id_prefix or self.default_prefix
        self.request_metadata = dict(request_metadata or {})

    async def run_single(
        self,
        row: Mapping[str, object],
        row_index: int,
        max_turns: int = 10,
        completion_params: Mapping[str, object] | None = None,
        rollout_id: str | None = None,
        request_metadata: Mapping[str, object] | None = None,
    ) -> LocalRunResult:
        started = time.monotonic()
        self.llm_client.reset_metrics()
        try:
            request = dataset_row_to_request(
                row,
                row_index,
                max_turns=max_turns,
                completion_params=completion_params,
                rollout_id_prefix=self.rollout_id_prefix,
                rollout_id=rollout_id,
                metadata_overrides={**self.request_metadata, **(request_metadata or {})},
            )
            tools = self.agent_loop.get_tools(request)
            validate_tools(tools)
            self.llm_client.set_tools(tools)
            context = RolloutContext(
                request=request, tools=tools, llm=self.llm_client, _start_time=started, _debug_dir=self.debug_dir
            )
            result = await run_user_code(self.agent_loop.run(context), None)
            failed = str(getattr(result.status, "value", result.status)) != "COMPLETED"
            error = (result.error_message or "the agent loop ended with ERROR") if failed else None
        except Exception as exc:  # noqa: BLE001 - one rollout: a loop may raise anything
            result, error = None, describe(exc)
        finally:
            self.llm_client.clear_tools()
        metrics = self.llm_client.get_metrics()
        return LocalRunResult(
            row_index=row_index,
            success=error is None,
            result=result,
            error=error,
            duration_ms=(time.monotonic() - started) * 1000,
            token_usage={
                "prompt_tokens": metrics.prompt_tokens,
                "completion_tokens": metrics.response_tokens,
                "total_tokens": metrics.prompt_tokens + metrics.response_tokens,
                "num_llm_calls": metrics.num_llm_calls,
            },
        )

    async def run_batch(
        self,
        rows: list[JsonObject],
        max_turns: int = 10,
        completion_params: Mapping[str, object] | None = None,
        on_progress: Callable[[int, int, "LocalRunResult"], None] | None = None,
        start_index: int = 0,
    ) -> LocalBatchResult:
        done: dict[int, LocalRunResult] = {}
        finished = 0

        async def attempt(task: Task) -> LocalRunResult:
            done[task.row.index] = await self.run_single(task.row.data, task.row.index, max_turns, completion_params)
            return done[task.row.index]

        def on_rollout(rollout: Rollout) -> None:
            nonlocal finished
            finished += 1
            if on_progress is not None:
                on_progress(finished, len(rows), done[rollout.row_index])

        await run_rows(rows, [attempt], on_rollout, start_index=start_index)
        results = [done[index] for index in sorted(done)]
        passed = sum(result.success for result in results)
        return LocalBatchResult(
            results=results,
            total=len(results),
            passed=passed,
            failed=len(results) - passed,
            total_duration_ms=sum(result.duration_ms for result in results),
            total_tokens=sum(result.token_usage.get("total_tokens", 0) for result in results),
        )


RunOne = Callable[[Task], Awaitable[LocalRunResult]]


async def run_rows(
    rows: Sequence[Mapping[str, object]],
    lanes: Sequence[RunOne],
    on_rollout: Callable[[Rollout], None],
    *,
    start_index: int = 0,
    attempts: int = 1,
    pass_threshold: float = 1.0,
    scorers: Sequence[Scorer] = (),
) -> Report:
    """Run every row `attempts` times through the engine's loop, without limits; call `on_rollout` with each."""
    plan = EvalPlan(
        name="local",
        agent="agent_loop",
        model=ModelSpec(name="client", kind="openai"),
        dataset="rows",
        attempts=attempts,
        concurrency=len(lanes),
        pass_threshold=pass_threshold,
        timeouts=Timeouts(agent_s=None, score_s=None, model_s=None),
    )
    numbered_rows = [Row(index=index, data=dict(row)) for index, row in enumerate(rows, start=start_index)]
    agent, observer = _LaneAgent(lanes), _RolloutObserver(on_rollout)
    return await Evaluation(plan, numbered_rows, agent, scorers=scorers, observer=observer).run()


class _LaneAgent:
    def __init__(self, lanes: Sequence[RunOne]) -> None:
        self._free = list(lanes)

    async def run(self, task: Task, model: RolloutModel) -> Rollout:
        lane = self._free.pop()
        try:
            done = await lane(task)
            failure = None if done.success else agent_error(done.error or "the agent loop ended with ERROR")
            return Rollout.model_construct(
                rollout_id=task.rollout_id,
                row_index=task.row.index,
                attempt=task.attempt,
                status=RolloutStatus.FAILED if failure else RolloutStatus.SUCCESS,
                messages=done.result.final_messages if done.result is not None else [],
                failure=failure,
                scores={},
                usage=Usage(
                    prompt_tokens=done.token_usage.get("prompt_tokens", 0),
                    completion_tokens=done.token_usage.get("completion_tokens", 0),
                ),
                duration_ms=done.duration_ms,
            )
        finally:
            self._free.append(lane)


class _RolloutObserver(Observer):
    def __init__(self, on_rollout: Callable[[Rollout], None]) -> None:
        self._on_rollout = on_rollout

    def rollout(self, rollout: Rollout, running: Report | None) -> None:
        self._on_rollout(rollout)


class LocalTestRunner(LocalRolloutRunner):
    default_debug_dir = "./test_debug"
    default_prefix = "test"

    def __init__(
        self,
        agent_loop: RolloutAgentLoop,
        llm_client: Client,
        debug: bool = False,
        debug_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        mode = {"execution_mode": "test", "test_mode": True}
        super().__init__(agent_loop, llm_client, debug, debug_dir, request_metadata=mode)
