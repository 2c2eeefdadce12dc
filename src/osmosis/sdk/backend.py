import asyncio
import importlib
import inspect
import math
import operator
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from osmosis.base.jsonable import JsonObject, copy_json
from osmosis.records.protocol.messages import ARTIFACT_VARIABLE, RolloutInit, RolloutState, check_rollout_id
from osmosis.records.run.rollout import Category, Failure, Message, Phase, Usage, user_metrics
from osmosis.sdk.chat import Ask, ChatTransport, ask_transport
from osmosis.sdk.classify import failure_of, self_cancelled, wire_category
from osmosis.sdk.messages import Prompts, folder_of
from osmosis.sdk.sandbox import Opening, opening_from, sandbox_while
from osmosis.sdk.score_functions import bounds_of
from osmosis.sdk.types import AgentWorkflowConfig, GraderConfig, RolloutSample
from osmosis.sdk.user_code import LimitReached, SelfCancelled, run_user_code
from osmosis.sdk.workflow import (
    AgentWorkflow,
    AgentWorkflowContext,
    AgentWorkflowOutput,
    Grader,
    GraderClass,
    GraderContext,
    WorkflowClass,
    WorkflowRollout,
)

DEFAULT_MAX_CONCURRENT = 4

OnState = Callable[[RolloutState], None]


@dataclass
class ExecutionResult:
    status: Literal["success", "failure", "cancelled"]  # `failure` also when only the grader failed; `err_phase` tells
    sample: RolloutSample | None = None
    err_phase: Phase | None = None
    err_message: str | None = None
    err_category: str | None = None  # one of generation 0.3's words: timeout, validation_error, http_error, agent_error
    traceback: str | None = None
    failure: Failure | None = None
    duration_ms: float = 0.0
    queue_ms: float = 0.0
    graded: bool = False
    info: JsonObject = field(default_factory=dict)


@dataclass(slots=True)
class WorkflowTask:
    prompt: list[Message]
    label: str | None = None
    metadata: Mapping[str, object] = field(default_factory=dict)
    rollout_id: str = ""
    chat_completions_url: str = ""  # prefix of the model's endpoint, for a client that the workflow brings
    api_key: str = ""
    agent_timeout_s: float | None = None
    grader_timeout_s: float | None = None
    grade: bool = True
    artifact_root: Path | None = None  # in place of the backend's

    @classmethod
    def from_init(cls, init: RolloutInit) -> "WorkflowTask":
        return cls(
            init.initial_messages,
            init.label,
            init.metadata or {},
            init.rollout_id or "",
            init.chat_completions_url,
            init.llm_api_key or init.controller_api_key or "",
            init.agent_timeout_sec,
            init.grader_timeout_sec,
            init.grade,
        )


def cancelled_result(phase: Phase, sample: RolloutSample | None = None) -> ExecutionResult:
    failure = self_cancelled(phase)
    return ExecutionResult(
        "cancelled", sample, err_phase=phase, err_message=failure.message, err_category="agent_error", failure=failure
    )


def failed_result(error: Exception, phase: Phase, sample: RolloutSample | None) -> ExecutionResult:
    failure = failure_of(error, phase)
    return with_failure(ExecutionResult("failure", sample), failure, wire_category(failure, error))


def with_failure(result: ExecutionResult, failure: Failure, category: str) -> ExecutionResult:
    result.status = "failure"
    result.err_phase = failure.phase
    result.err_message = failure.message
    result.err_category = category
    result.traceback = failure.traceback
    result.failure = failure
    return result


class Slots:
    """A semaphore that one event loop after another may use (each local run brings its own)."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._loop: asyncio.AbstractEventLoop | None = None
        self._semaphore: asyncio.Semaphore | None = None

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        if self._limit is None:
            yield
            return
        loop = asyncio.get_running_loop()
        if self._semaphore is None or self._loop is not loop:
            self._loop, self._semaphore = loop, asyncio.Semaphore(self._limit)
        async with self._semaphore:
            yield

    async def run(self, work: Callable[[], Awaitable[ExecutionResult]], on_state: OnState) -> ExecutionResult:
        on_state("queued")
        queued_at = time.monotonic()
        async with self.hold():
            started = time.monotonic()
            on_state("running")
            result = await work()
        result.queue_ms = (started - queued_at) * 1000
        result.duration_ms = (time.monotonic() - started) * 1000
        return result


def ignore_state(_: RolloutState) -> None: ...


def max_concurrent_of(config: AgentWorkflowConfig | GraderConfig | None) -> int | None:
    return DEFAULT_MAX_CONCURRENT if config is None else config.concurrency.max_concurrent


def resolve_class(reference: object, base: type) -> Any:
    resolved = reference
    if isinstance(reference, str):
        module, _, attribute = reference.rpartition(":" if ":" in reference else ".")
        if not module or not attribute:
            raise TypeError(f"{reference!r} does not name a class: write 'module:Class'")
        resolved = operator.attrgetter(attribute)(importlib.import_module(module))
    if not (inspect.isclass(resolved) and issubclass(resolved, base)):
        raise TypeError(f"{resolved!r} is not a subclass of {base.__name__}: give the class itself or 'module:Class'")
    if inspect.isabstract(resolved):
        missing = ", ".join(sorted(getattr(resolved, "__abstractmethods__", ())))
        raise TypeError(f"{resolved.__name__} cannot be used: it does not define {missing}")
    return resolved


class GraderRunner:
    def __init__(
        self, grader: GraderClass | str, config: GraderConfig | None = None, project_path: Path | None = None
    ) -> None:
        self.grader: GraderClass = resolve_class(grader, Grader)
        self.config = config
        self.project_path = project_path
        self._slots = Slots(max_concurrent_of(config) if config else None)

    async def grade(
        self,
        task: WorkflowTask,
        result: ExecutionResult,
        *,
        artifacts_dir: Path | None = None,
        on_state: OnState | None = None,
    ) -> ExecutionResult:
        sample = result.sample
        assert sample is not None
        if task.label is None and not task.metadata:
            failure = Failure(
                phase=Phase.SCORE,
                category=Category.SCORE_ERROR,
                message="the row has neither a label nor metadata to grade against",
                fix="add a ground_truth (or label) column to the dataset",
            )
            return with_failure(result, failure, "validation_error")
        context = GraderContext(
            label=task.label,
            sample=sample,
            project_path=self.project_path,
            metadata={key: copy_json(value) for key, value in task.metadata.items()},
            artifacts_dir=artifacts_dir,
            config=self.config,
            rollout_id=task.rollout_id,
        )

        async def grade() -> None:
            await self.grader(self.config).grade(context)

        try:
            async with self._slots.hold():
                (on_state or ignore_state)("grading")
                await run_user_code(grade(), task.grader_timeout_s, name=f"grader {task.rollout_id}")
        except SelfCancelled:
            return cancelled_result(Phase.SCORE, sample)
        except Exception as error:  # noqa: BLE001 - one rollout: user code may raise anything
            sample.reward = None
            failure = failure_of(error, Phase.SCORE)
            return with_failure(result, failure, wire_category(failure, error))
        bounds = bounds_of(self.grader)
        if sample.reward is not None and bounds is not None and not bounds[0] <= sample.reward <= bounds[1]:
            problem = f"set {sample.reward:g}, which is not between {bounds[0]:g} and {bounds[1]:g} as it declares"
            sample.reward = None
        elif sample.remove_sample or (sample.reward is not None and math.isfinite(sample.reward)):
            result.graded = True
            return result
        else:
            problem = "did not set a reward"
        failure = Failure(
            phase=Phase.SCORE,
            category=Category.INVALID_SCORE,
            message=f"{self.grader.__name__}.grade {problem}",
            fix="call ctx.set_reward(x) with a finite number, or set ctx.sample.remove_sample = True",
        )
        return with_failure(result, failure, "validation_error")


class LocalBackend:
    """Runs rollouts in this process, at most `max_concurrent` at once (the config's limit, else 4; None: no limit),
    each with a new `workflow` and `grader`, classes or `"module:Class"`. No time limit counts the wait for a slot."""

    def __init__(
        self,
        workflow: WorkflowClass | str,
        workflow_config: AgentWorkflowConfig | None = None,
        grader: GraderClass | str | None = None,
        grader_config: GraderConfig | None = None,
        *,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.workflow: WorkflowClass = resolve_class(workflow, AgentWorkflow)
        self.workflow_config = workflow_config
        self.max_concurrent = max_concurrent_of(workflow_config)
        # The variable is set by whoever starts the rollout's process; user code constructs this without one.
        self._environ = os.environ if environ is None else environ
        root = self._environ.get(ARTIFACT_VARIABLE)
        self.artifact_root = Path(root) if root else Path("~/.osmosis").expanduser()
        self.project_path = folder_of(self.workflow)
        self._grader_runner = None if grader is None else GraderRunner(grader, grader_config, self.project_path)
        self.grader: GraderClass | None = None if self._grader_runner is None else self._grader_runner.grader
        self.grader_config = grader_config
        self.slots = Slots(self.max_concurrent)

    async def execute(
        self, init: RolloutInit, *, on_state: OnState | None = None, transport: ChatTransport | None = None
    ) -> ExecutionResult:
        """Run the workflow, then the grader (when there is one, `init.grade`, and a label or metadata). `transport`
        answers `ctx.chat()` without HTTP. Cancelling the caller passes through; everything else is a result."""
        ask = None if transport is None else ask_transport(transport)
        return await self.run(WorkflowTask.from_init(init), ask=ask, on_state=on_state)

    async def run(
        self, task: WorkflowTask, *, ask: Ask | None = None, on_state: OnState | None = None
    ) -> ExecutionResult:
        """Do as `execute` does, with `ctx.chat()` answered by `ask` instead of the endpoint."""
        report_state = on_state or ignore_state
        return await self.slots.run(lambda: self._run(task, report_state, ask), report_state)

    def _sandbox_opening(self, task: WorkflowTask) -> Opening:
        return opening_from(self._environ, task.chat_completions_url, task.api_key)

    async def _run(self, task: WorkflowTask, on_state: OnState, ask: Ask | None) -> ExecutionResult:
        rollout = WorkflowRollout(task.chat_completions_url, task.api_key, task.rollout_id, ask=ask)
        async with sandbox_while(self._sandbox_opening(task)):
            with rollout:
                result = await self._run_workflow(task, rollout)
                if rollout.user_usage != Usage():
                    result.sample = result.sample or RolloutSample()
                    result.sample.metrics.update(user_metrics(rollout.user_usage))
                if result.status != "success" or self._grader_runner is None or not task.grade:
                    return result
                artifacts = self._artifacts(task)
                return await self._grader_runner.grade(task, result, artifacts_dir=artifacts, on_state=on_state)

    async def _run_workflow(self, task: WorkflowTask, rollout: WorkflowRollout) -> ExecutionResult:
        context: AgentWorkflowContext[object] = AgentWorkflowContext(
            prompt=[{key: copy_json(value) for key, value in message.items()} for message in task.prompt],
            config=self.workflow_config,
            metadata={key: copy_json(value) for key, value in task.metadata.items()},
            artifacts_dir=self._artifacts(task),
            rollout=rollout,
            prompts=Prompts(self.workflow),
        )

        async def run() -> object:
            return await self.workflow(self.workflow_config).run(context)

        try:
            output = await run_user_code(run(), task.agent_timeout_s, name=f"workflow {task.rollout_id}")
            sample = await _sample_of(output, rollout)
        except LimitReached as limit:
            output, sample = None, await _partial_sample(rollout) or RolloutSample(messages=limit.messages)
        except SelfCancelled:
            return cancelled_result(Phase.AGENT)
        except Exception as error:  # noqa: BLE001 - one rollout: user code may raise anything
            return failed_result(error, Phase.AGENT, await _partial_sample(rollout))
        sample.label = task.label if sample.label is None else sample.label
        info = output.info if isinstance(output, AgentWorkflowOutput) else {}
        return ExecutionResult("success", sample, info=info)

    def _artifacts(self, task: WorkflowTask) -> Path | None:
        if not task.rollout_id:
            return None
        return (task.artifact_root or self.artifact_root) / check_rollout_id(task.rollout_id) / "artifacts"


class FinishedProgram(AgentWorkflow[object]):
    async def run(self, ctx: AgentWorkflowContext[object]) -> list[Message]:
        return ctx.prompt


async def _sample_of(output: object, rollout: WorkflowRollout) -> RolloutSample:
    if output is None:
        sample = await rollout.get_sample()
        if sample is None:
            raise ValueError(
                "run() returned None and no conversation was registered: return the messages, or use an "
                "integration that registers them"
            )
        return sample
    if isinstance(output, AgentWorkflowOutput):
        return RolloutSample(messages=output.messages, metrics=dict(output.metrics))
    if isinstance(output, list) and all(isinstance(message, dict) for message in output):
        return RolloutSample(messages=output)
    raise TypeError(
        f"run() returned {type(output).__name__}; return a list of messages, an AgentWorkflowOutput or None"
    )


async def _partial_sample(rollout: WorkflowRollout) -> RolloutSample | None:
    try:
        return await rollout.get_sample()
    except Exception:  # noqa: BLE001 - the rollout has failed already; its own error is the one to report
        return None
