"""`inspect:FILE.py@task?option=value`, or an installed `inspect:PACKAGE/task`: options are the task's arguments, but
for `score` (which score is the reward) and `grader` (the judge's model). inspect runs solver, tools and scorer on the
rollout's own endpoint. A process has one evaluation of inspect, to which each rollout adds a sample. Refused by name:
tasks without a fixed dataset, scorers that ask the model that is evaluated."""

# inspect_ai is in the rollout's environment, never where the checker runs.
# mypy: disable-error-code="import-not-found,misc,no-any-return,untyped-decorator"

import asyncio
import json
import os
import runpy
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from weakref import WeakKeyDictionary

import anyio
from inspect_ai import SampleSource, Task, enqueue_sample, eval_async, list_tasks, model as im, task_with
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalSample
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.tool import ToolCall, ToolChoice, ToolInfo
from inspect_ai.util import display_type

from osmosis.base.jsonable import JsonObject
from osmosis.errors import LoadError
from osmosis.records.run.rollout import Message
from osmosis.sdk.backend import LocalBackend
from osmosis.sdk.chat import ChatClient
from osmosis.sdk.foreign import ForeignEnvironment, ForeignWorkflow, KeepReward
from osmosis.sdk.types import AgentWorkflowConfig, RolloutSample
from osmosis.sdk.workflow import AgentWorkflowContext

CHOICES = {"any": "required", "none": "none"}
PARAMS = ("temperature", "top_p", "max_tokens", "seed", "frequency_penalty", "presence_penalty", "parallel_tool_calls")
_TOOL = {"name", "description", "parameters"}
MANY = 10_000
IDLE_S = 1.0  # How long an evaluation waits for another sample before it ends


@dataclass(eq=False)
class Attempt:
    chat: ChatClient
    done: "asyncio.Future[EvalSample]"
    scope: anyio.CancelScope
    error: Exception | None = None


_current: ContextVar[Attempt | None] = ContextVar("osmosis_inspect_attempt", default=None)


class Feed(SampleSource):
    def __init__(self, task: Task, judge: object) -> None:
        self._task = task_with(task, dataset=self, solver=self._attempt(task.solver), epochs=1)
        quiet = dict.fromkeys(("log_realtime", "log_model_api", "score_display", "ctl_server", "fail_on_error"), False)
        roles = {"grader": judge} if judge else {}
        self._options = {**quiet, "log_header_only": True, "max_samples": MANY, "model_roles": roles}
        self._attempts: dict[tuple[str, int], Attempt] = {}
        self._epochs: Counter[str] = Counter()
        self._waiting: list[tuple[Sample, int]] = []
        self._arrived = asyncio.Event()
        self._context: Context | None = None
        self._running: asyncio.Task[None] | None = None

    async def run(self, sample: Sample, chat: ChatClient) -> tuple[EvalSample, Exception | None]:
        """Return the sample as inspect left it, and the error of the last call of the model."""
        self._epochs[str(sample.id)] += 1
        key = str(sample.id), self._epochs[str(sample.id)]
        attempt = self._attempts[key] = Attempt(chat, asyncio.get_running_loop().create_future(), anyio.CancelScope())
        self._waiting.append((sample, key[1]))
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._evaluate())
        elif self._context is not None:
            self._context.copy().run(self._enqueue)
        try:
            return await attempt.done, attempt.error
        finally:
            attempt.scope.cancel()
            del self._attempts[key]

    async def next_samples(self) -> list[Sample] | None:
        self._context = copy_context()
        self._arrived.clear()
        if not self._waiting:
            try:
                await asyncio.wait_for(self._arrived.wait(), IDLE_S)
            except asyncio.TimeoutError:
                self._context = None
                return None
        self._enqueue()
        return []

    async def sample_complete(self, sample: EvalSample) -> None:
        attempt = self._attempts.get((str(sample.id), sample.epoch))
        if attempt is not None and not attempt.done.done():
            attempt.done.set_result(sample)

    def _enqueue(self) -> None:
        for sample, epoch in self._waiting:
            enqueue_sample(sample, epoch=epoch)
        self._waiting.clear()
        self._arrived.set()

    async def _evaluate(self) -> None:
        os.environ.setdefault("INSPECT_DISPLAY", "none")
        display_type()  # reads the variable, once
        while self._waiting:
            problem: Exception | None = None
            with TemporaryDirectory(prefix="osmosis-inspect-") as folder:
                try:
                    (log,) = await eval_async(self._task, "osmosis/rollout", log_dir=folder, **self._options)
                    message = log.error.message if log.error else "inspect ended without this sample"
                except Exception as error:  # noqa: BLE001 - user code and inspect's own: every rollout that waits fails
                    problem, message = error, f"{type(error).__name__}: {error}"
            self._context = None
            waiting = {(str(sample.id), epoch) for sample, epoch in self._waiting} if problem is None else set()
            for key, attempt in self._attempts.items():
                if key not in waiting and not attempt.done.done():
                    attempt.done.set_exception(RuntimeError(message))
            if problem is not None:
                self._waiting.clear()

    def _attempt(self, inner: Solver) -> Solver:
        async def solve(state: TaskState, generate: Generate) -> TaskState:
            attempt = self._attempts.get((str(state.sample_id), state.epoch))
            if attempt is not None:
                token = _current.set(attempt)
                try:
                    with attempt.scope:
                        return await inner(state, generate)
                finally:
                    _current.reset(token)
            raise RuntimeError("the rollout was stopped")

        return solver(name="osmosis_attempt")(lambda: solve)()


class RolloutModel(im.ModelAPI):
    async def generate(
        self, input: "list[im.ChatMessage]", tools: list[ToolInfo], tool_choice: ToolChoice, config: "im.GenerateConfig"
    ) -> "im.ModelOutput":
        attempt = _current.get()
        if attempt is None:
            raise RuntimeError("a scorer asks the evaluated model: name a judge, inspect:...?grader=openai/gpt-5-mini")
        params = {name: value for name in PARAMS if (value := getattr(config, name)) is not None}
        if config.stop_seqs:
            params["stop"] = config.stop_seqs
        if tools and tool_choice != "auto":
            function = {"type": "function", "function": {"name": getattr(tool_choice, "name", "")}}
            params["tool_choice"] = CHOICES[tool_choice] if isinstance(tool_choice, str) else function
        offered = [
            {"type": "function", "function": tool.model_dump(include=_TOOL, exclude_none=True)} for tool in tools
        ]
        try:
            done = await attempt.chat.complete(list(map(_message, input)), tools=offered, **params)
        except Exception as error:
            attempt.error = error
            raise
        thoughts = done.message.get("reasoning_content")
        content = [*([im.ContentReasoning(reasoning=thoughts)] if thoughts else []), im.ContentText(text=done.content)]
        calls = list(map(_call, done.tool_calls)) or None
        answer = im.ChatMessageAssistant(content=content, tool_calls=calls, source="generate")
        stop = {"length": "max_tokens", "tool_calls": "tool_calls"}.get(done.finish_reason or "", "stop")
        spent, sampled = done.usage.prompt_tokens, done.usage.completion_tokens
        usage = im.ModelUsage(input_tokens=spent, output_tokens=sampled, total_tokens=spent + sampled)
        return im.ModelOutput(choices=[im.ChatCompletionChoice(message=answer, stop_reason=stop)], usage=usage)

    async def count_text_tokens(self, text: str) -> int:
        return len(text) // 4 + 1  # inspect's own downloads a tokenizer

    def max_connections(self) -> int:
        return MANY


im.modelapi(name="osmosis")(RolloutModel)


class TaskConfig(AgentWorkflowConfig):
    task: Task
    score: str | None
    judge: object
    feeds: "WeakKeyDictionary[asyncio.AbstractEventLoop, Feed]"


class TaskWorkflow(ForeignWorkflow[TaskConfig]):
    async def run(self, ctx: AgentWorkflowContext[TaskConfig]) -> None:
        config = self.config
        loop = asyncio.get_running_loop()
        if loop not in config.feeds:
            config.feeds[loop] = Feed(config.task, config.judge)
        async with ctx.chat(max_attempts=1) as chat:
            done, error = await config.feeds[loop].run(Sample.model_validate(ctx.metadata["sample"]), chat)
        self.sample = RolloutSample(messages=list(map(_message, done.messages)))
        ctx.rollout.set_sample_source(self)
        if done.error is not None:
            raise error or RuntimeError(done.error.message)
        if done.limit is not None:
            self.sample.extra_fields["limit"] = done.limit.type
        self.sample.reward, self.sample.reason, self.sample.parts = _reward(done, config.score)


def open_environment(name: str, options: JsonObject, base_dir: Path) -> ForeignEnvironment:
    score, judge = options.pop("score", None), options.pop("grader", None)
    create = _find_task(name, base_dir)
    try:
        signature(create).bind(**options)
    except TypeError as error:
        raise LoadError(f"inspect:{name}: {error}", hint=f"its options: {signature(create)}") from error
    task = create(**options)
    if not isinstance(task, Task) or isinstance(task.dataset, SampleSource):
        problem = f"inspect:{name} has no fixed dataset ({type(getattr(task, 'dataset', task)).__name__})"
        raise LoadError(problem, hint="only tasks with a dataset can be run: inspect eval runs the others")
    if not task.scorer:
        raise LoadError(f"inspect:{name} has no scorer", hint="give the task a scorer")
    config = TaskConfig(name=task.name, task=task, score=score, judge=judge, feeds=WeakKeyDictionary())
    return ForeignEnvironment(LocalBackend(TaskWorkflow, config, KeepReward), partial(_make_rows, task))


def _find_task(name: str, base_dir: Path) -> Callable[..., object]:
    path, _, chosen = name.partition("@")
    if path.endswith(".py"):
        sys.path.insert(0, str((base_dir / path).parent))
        owner: object = SimpleNamespace(**runpy.run_path(str(base_dir / path)))
        names = [task.name for task in list_tasks(path, root_dir=base_dir)]
    else:
        package, _, chosen = name.partition("/")
        (owner, *_), names = [*(entry.load() for entry in entry_points(group="inspect_ai", name=package)), None], []
        names = sorted(key for key in vars(owner) if not key.startswith("_")) if owner else []
    chosen = chosen or (names[0] if len(names) == 1 else "")
    create = getattr(owner, chosen, None)
    if not callable(create):
        raise LoadError(
            f"inspect:{name} names no task", hint=f"inspect:{path}@NAME; tasks: {', '.join(names) or 'none'}"
        )
    return create


def _make_rows(task: Task) -> Iterator[JsonObject]:
    for number, sample in enumerate(task.dataset, 1):
        sample.id = number if sample.id is None else sample.id
        prompt = [{"role": "user", "content": sample.input}] if isinstance(sample.input, str) else None
        target = sample.target if isinstance(sample.target, str) else json.dumps(sample.target)
        row: JsonObject = {"id": str(sample.id), "messages": prompt or list(map(_message, sample.input))}
        row |= {"ground_truth": target} if target else {}
        yield {**row, "metadata": {"sample": sample.model_dump(mode="json", exclude_none=True)}}


def _reward(done: EvalSample, chosen: str | None) -> tuple[float | None, str | None, dict[str, float] | None]:
    numbers: dict[str, float] = {}
    reasons: dict[str, str | None] = {}
    for name, score in (done.scores or {}).items():
        for key, value in score.value.items() if isinstance(score.value, dict) else [("", score.value)]:
            number = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}.get(value) if isinstance(value, str) else value
            if isinstance(number, (bool, int, float)) and number == number:
                full = f"{name}.{key}" if key else name
                numbers[full], reasons[full] = float(number), score.explanation
    first = chosen or next(iter(done.scores or {}), "")
    if numbers and first not in numbers and (chosen or first in {name.partition(".")[0] for name in numbers}):
        raise ValueError(f"there is no score {first!r}: inspect:...?score=NAME, one of {', '.join(numbers)}")
    return numbers.get(first), reasons.get(first), numbers if len(numbers) > 1 else None


def _message(message: "im.ChatMessage") -> Message:
    plain: Message = {"role": message.role, "content": message.text}
    parts = message.content if isinstance(message.content, list) else []
    if any(part.type == "image" for part in parts):
        plain["content"] = [
            {"type": "text", "text": part.text}
            if part.type == "text"
            else {"type": "image_url", "image_url": {"url": part.image, "detail": part.detail}}
            for part in parts
            if part.type in ("text", "image")
        ]
    if thoughts := [part.reasoning for part in parts if part.type == "reasoning"]:
        plain["reasoning_content"] = "\n".join(thoughts)
    if calls := getattr(message, "tool_calls", None):
        functions = [(call.id, {"name": call.function, "arguments": json.dumps(call.arguments)}) for call in calls]
        plain["tool_calls"] = [{"id": id, "type": "function", "function": function} for id, function in functions]
    if message.role == "tool":
        plain["tool_call_id"] = message.tool_call_id
        plain["content"] = message.error.message if message.error else plain["content"]
    return plain


def _call(call: JsonObject) -> ToolCall:
    try:
        arguments = dict(json.loads(call["function"]["arguments"] or "{}"))
        problem = None
    except (ValueError, TypeError) as error:
        arguments, problem = {}, f"the arguments are no JSON object: {error}"
    return ToolCall(id=call["id"], function=call["function"]["name"], arguments=arguments, parse_error=problem)
