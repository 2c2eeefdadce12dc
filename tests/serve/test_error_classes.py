"""The same error has the same phase and category whatever kind of agent raised it, and wherever the agent runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import aiohttp
import httpx
import openai
import pytest
from yarl import URL

from osmosis.compat.loop_backend import LoopBackend
from osmosis.engine.agent import Agent
from osmosis.engine.evaluate import Evaluation, Observer
from osmosis.engine.scoring import FunctionScorer
from osmosis.errors import ModelError
from osmosis.records.run.plan import Retry, Timeouts
from osmosis.records.run.rollout import Failure, Rollout
from osmosis.records.run.rows import Row
from osmosis.sdk.agent_loop import RolloutAgentLoop, RolloutContext, RolloutResult
from osmosis.sdk.judge_model import ProviderRequestError
from osmosis.sdk.types import ToolExecutionError, ToolServerLost
from osmosis.sdk.workflow import AgentWorkflow, AgentWorkflowContext, Grader, GraderContext
from osmosis.serve.client.remote import ServerAt, served
from osmosis.serve.server.queue import ServeLimits
from support.rollout_run import as_agent
from support.server import running_app

from .support import ScriptedModel, backend, fail, loop_app, open_proxy, plan, server

REQUEST = httpx.Request("POST", "http://127.0.0.1/v1/chat/completions")


def openai_error(status: int, text: str = "refused") -> Exception:
    known: dict[int, type[openai.APIStatusError]] = {
        400: openai.BadRequestError,
        401: openai.AuthenticationError,
        403: openai.PermissionDeniedError,
        404: openai.NotFoundError,
        429: openai.RateLimitError,
    }
    kind = known.get(status, openai.InternalServerError if status >= 500 else openai.APIStatusError)
    return kind(text, response=httpx.Response(status, request=REQUEST), body=None)


def httpx_error(status: int) -> Exception:
    return httpx.HTTPStatusError("refused", request=REQUEST, response=httpx.Response(status, request=REQUEST))


def aiohttp_error(status: int) -> Exception:
    info = aiohttp.RequestInfo(URL("http://127.0.0.1"), "POST", None, URL("http://127.0.0.1"))  # type: ignore[arg-type]
    return aiohttp.ClientResponseError(info, (), status=status)


def litellm_error(name: str, status: int, text: str = "litellm: refused") -> Exception:
    """LiteLLM's errors are OpenAI's under further names, with a status of LiteLLM's own."""
    error = type(name, (openai.OpenAIError,), {})(text)
    error.status_code = status
    return error


class HasNoText(Exception):
    def __str__(self) -> str:
        raise ValueError("no text today")


def raised_from(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


LIMITED = ModelError("slow down", category="rate_limit", status=429)

RAISED: dict[str, tuple[Callable[[], BaseException], tuple[str, str]]] = {
    "openai 400": (lambda: openai_error(400), ("model", "bad_request")),
    "openai 401": (lambda: openai_error(401), ("model", "auth")),
    "openai 403": (lambda: openai_error(403), ("model", "auth")),
    "openai 404": (lambda: openai_error(404), ("model", "model_not_found")),
    "openai 408": (lambda: openai_error(408), ("model", "timeout")),
    "openai 409": (lambda: openai_error(409), ("model", "server_error")),
    "openai 413": (lambda: openai_error(413), ("model", "context_length")),
    "openai 422": (lambda: openai_error(422), ("model", "bad_request")),
    "openai 429": (lambda: openai_error(429), ("model", "rate_limit")),
    "openai quota": (lambda: openai_error(429, "insufficient_quota"), ("model", "auth")),
    "openai 500": (lambda: openai_error(500), ("model", "server_error")),
    "openai 503": (lambda: openai_error(503), ("model", "server_error")),
    "openai 504": (lambda: openai_error(504), ("model", "timeout")),
    "openai 529": (lambda: openai_error(529), ("model", "rate_limit")),
    "openai context": (lambda: openai_error(400, "maximum context length is 8192"), ("model", "context_length")),
    "openai connection": (lambda: openai.APIConnectionError(request=REQUEST), ("model", "connection")),
    "openai timeout": (lambda: openai.APITimeoutError(request=REQUEST), ("model", "timeout")),
    "openai odd body": (
        lambda: openai.APIResponseValidationError(httpx.Response(200, request=REQUEST), None),
        ("model", "bad_response"),
    ),
    "httpx 401": (lambda: httpx_error(401), ("model", "auth")),
    "httpx 429": (lambda: httpx_error(429), ("model", "rate_limit")),
    "httpx 500": (lambda: httpx_error(500), ("model", "server_error")),
    "httpx connect": (lambda: httpx.ConnectError("refused"), ("model", "connection")),
    "httpx read timeout": (lambda: httpx.ReadTimeout("slow"), ("model", "timeout")),
    "httpx cut": (lambda: httpx.RemoteProtocolError("cut"), ("model", "connection")),
    "aiohttp 429": (lambda: aiohttp_error(429), ("model", "rate_limit")),
    "aiohttp cut": (lambda: aiohttp.ServerDisconnectedError(), ("model", "connection")),
    "litellm timeout": (lambda: litellm_error("Timeout", 408), ("model", "timeout")),
    "litellm connection": (lambda: litellm_error("APIConnectionError", 500), ("model", "connection")),
    "litellm context": (lambda: litellm_error("ContextWindowExceededError", 400), ("model", "context_length")),
    "litellm no key": (lambda: litellm_error("InternalServerError", 500, "Missing credentials."), ("model", "auth")),
    "model error": (lambda: LIMITED, ("model", "rate_limit")),
    "model error, odd category": (lambda: ModelError("?", category="of tomorrow"), ("model", "unknown")),
    "judge": (lambda: ProviderRequestError("p", "m", "no"), ("agent", "agent_error")),
    "raised from a model error": (lambda: raised_from(RuntimeError("no"), LIMITED), ("model", "rate_limit")),
    "raised from a vendor's": (lambda: raised_from(KeyError("x"), openai_error(429)), ("model", "rate_limit")),
    "raised in vain": (lambda: raised_from(RuntimeError("no"), ValueError("x")), ("agent", "agent_error")),
    "tool server": (lambda: ToolServerLost("gone"), ("setup", "server_died")),
    "raised from a tool server": (
        lambda: raised_from(RuntimeError(), ToolServerLost("gone")),
        ("setup", "server_died"),
    ),
    "tool": (lambda: raised_from(ToolExecutionError("no weather"), httpx_error(500)), ("agent", "agent_error")),
    "own timeout": (lambda: asyncio.TimeoutError(), ("agent", "timeout")),
    "built-in timeout": (lambda: TimeoutError("connect"), ("agent", "timeout")),
    "cancelled": (lambda: asyncio.CancelledError(), ("agent", "cancelled")),
    "exit": (lambda: SystemExit(2), ("agent", "agent_error")),
    "no status": (lambda: type("NotFoundError", (Exception,), {})("no file"), ("agent", "agent_error")),
    "plain": (lambda: ValueError("x"), ("agent", "agent_error")),
    "without text": (lambda: HasNoText(), ("agent", "agent_error")),
}
"""What an agent raises, and what that is."""

DONE: dict[str, tuple[str, str]] = {
    "wrong result": ("agent", "agent_error"),
    "hang": ("agent", "timeout"),
    "reward": ("score", "invalid_score"),
    "get_tools": ("agent", "agent_error"),
}
"""What an agent does, and what that is."""

MODEL_FAILS = ("as it is", "wrapped", "forgotten")
"""What an agent makes of a model call that fails."""


def raise_it(case: str) -> NoReturn:
    raise RAISED[case][0]()


class Loop(RolloutAgentLoop):
    name = "loop"

    def get_tools(self, request: Any) -> list[Any]:
        if request.metadata["case"] == "get_tools":
            raise SystemExit(3)
        return []

    async def run(self, ctx: RolloutContext) -> Any:
        case, messages = ctx.request.metadata["case"], list(ctx.request.messages)
        if case in RAISED:
            raise_it(case)
        if case in MODEL_FAILS:
            try:
                await ctx.chat(messages)
            except Exception as error:  # noqa: BLE001 - what agents do
                return give_up(case, error) or ctx.error("the model said no")
        if case == "hang":
            await asyncio.Event().wait()
        if case == "wrong result":
            return 3
        said: RolloutResult = ctx.complete(messages, reward=float("nan"))
        return said


class Workflow(AgentWorkflow[Any]):
    async def run(self, ctx: AgentWorkflowContext[Any]) -> Any:
        case = ctx.metadata["case"]
        if case in RAISED:
            raise_it(case)
        if case in MODEL_FAILS:
            try:
                async with ctx.chat(max_attempts=1) as chat:
                    await chat.complete(ctx.prompt)
            except Exception as error:  # noqa: BLE001 - what agents do
                give_up(case, error)
                raise KeyError("forgotten") from None
        if case == "hang":
            await asyncio.Event().wait()
        if case == "get_tools":
            raise SystemExit(3)
        return 3 if case == "wrong result" else ctx.prompt


def give_up(case: str, error: Exception) -> None:
    if case == "as it is":
        raise error
    if case == "wrapped":
        raise RuntimeError("the agent could not go on") from error


class NotANumber(Grader[Any]):
    async def grade(self, ctx: GraderContext[Any]) -> None:
        ctx.set_reward(float("nan"))


class Kept(Observer):
    def __init__(self) -> None:
        self.rollouts: list[Rollout] = []

    def rollout(self, rollout: Rollout, running: Any = None) -> None:
        self.rollouts.append(rollout)


@asynccontextmanager
async def rollouts_of(kind: str, folder: Path, model: ScriptedModel) -> AsyncIterator[Agent]:
    """The five ways in which an agent runs."""
    planned = plan_of()
    if kind == "loop, in process":
        yield as_agent(Loop()).bind(planned)
        return
    local = backend(Workflow, NotANumber, root=folder)
    if kind == "workflow, in process":
        yield as_agent(local).bind(planned)
        return
    limits = ServeLimits(delivery_drain_s=0.1)
    if kind == "loop, served by 0.2":
        app: Any = loop_app(Loop(), folder)
    else:
        on = LoopBackend(Loop(), max_concurrent=None) if kind.startswith("loop") else local
        app = server(on, folder, limits=limits)
    generation: Any = kind[-3:]
    async with (
        running_app(app) as url,
        open_proxy(model) as gate,
        served(ServerAt(url, generation=generation), gate, planned) as agent,
    ):
        yield agent


def plan_of() -> Any:
    return plan(concurrency=64, timeouts=Timeouts(agent_s=5.0), retry=Retry(max_attempts=1, breaker_after=1000))


KINDS = (
    "loop, in process",
    "loop, served by 0.2",
    "loop, served by 0.3",
    "loop, served by 0.4",
    "workflow, in process",
    "workflow, served by 0.3",
    "workflow, served by 0.4",
)


async def found(kind: str, folder: Path, cases: list[str], model: ScriptedModel) -> dict[str, tuple[str, str]]:
    rows = [Row(index=i, data={"user_prompt": "?", "ground_truth": "x", "case": case}) for i, case in enumerate(cases)]
    kept = Kept()
    async with rollouts_of(kind, folder, model) as agent:
        await Evaluation(plan_of(), rows, agent, model=model, observer=kept).run()
    return {cases[one.row_index]: class_of(failure_in(one)) for one in kept.rollouts}


def failure_in(rollout: Rollout) -> Failure | None:
    return rollout.failure or next((score.failure for score in rollout.scores.values()), None)


def class_of(failure: Failure | None) -> tuple[str, str]:
    return (failure.phase.value, failure.category.value) if failure else ("none", "none")


@pytest.mark.parametrize("kind", KINDS)
async def test_what_an_agent_raises(kind: str, tmp_path: Path) -> None:
    expected = {**{case: expected for case, (_, expected) in RAISED.items()}, **DONE}
    if kind == "loop, served by 0.2":
        # This generation answers 500 to a request whose tools it cannot list, and keeps a time limit of its own.
        del expected["get_tools"], expected["hang"]
    assert await found(kind, tmp_path, list(expected), ScriptedModel()) == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("category", ["rate_limit", "context_length", "auth"])
async def test_a_model_call_that_an_agent_does_not_survive(kind: str, category: str, tmp_path: Path) -> None:
    expected = dict.fromkeys(MODEL_FAILS, ("model", category))
    assert await found(kind, tmp_path, list(expected), ScriptedModel(fail(category))) == expected


@pytest.mark.parametrize("case", [case for case in RAISED if case != "cancelled"])
async def test_a_grader_and_a_score_function(case: str, tmp_path: Path) -> None:
    class Raises(Grader[Any]):
        async def grade(self, ctx: GraderContext[Any]) -> None:
            raise_it(case)

    class Answers(AgentWorkflow[Any]):
        async def run(self, ctx: AgentWorkflowContext[Any]) -> Any:
            return ctx.prompt

    def score(solution_str: str, ground_truth: str, extra_info: dict[str, Any]) -> float:
        raise_it(case)

    kept = Kept()
    row = Row(index=0, data={"user_prompt": "?", "ground_truth": "x"})
    scorers = [FunctionScorer("score", score)]
    agent = as_agent(backend(Answers, Raises, root=tmp_path)).bind(plan_of())
    await Evaluation(plan_of(), [row], agent, model=ScriptedModel(), scorers=scorers, observer=kept).run()
    by_grader, by_function = (class_of(kept.rollouts[0].scores[name].failure) for name in ("reward", "score"))
    assert by_grader == by_function
    _, category = RAISED[case][1]
    assert by_grader == ("score", "score_error" if category == "agent_error" else category)
