import time
from dataclasses import dataclass
from typing import Any

from osmosis.base.jsonable import JsonObject, copy_json, to_valid_text
from osmosis.engine.build_rollout import REWARD, build_rollout, read_reward
from osmosis.engine.rollout_model import RolloutModel
from osmosis.engine.task import Task
from osmosis.llm.model import STREAMING, ChatRequest
from osmosis.records.protocol.v02 import RolloutMetrics, RolloutRequest
from osmosis.records.run.plan import EvalPlan
from osmosis.records.run.rollout import Failure, Message, Rollout
from osmosis.sdk.agent_loop import CompletionsResult, RolloutAgentLoop, RolloutContext, RolloutResult
from osmosis.sdk.classify import agent_error
from osmosis.sdk.prompts import prompts_of

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
            prompts=prompts_of(type(self.loop)),
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
        """Call the model once; `tools` replaces the rollout's own, `on_piece` receives each piece of the answer, other
        arguments are sampling parameters."""
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
