"""Runs workflows and graders in this process: one `execute` per rollout, a limit on how many run at once.

Whatever user code does, `execute` returns one `ExecutionResult`; only its caller's own cancellation passes through.
It opens no port and sends nothing: the rollout server and the engine do that around it.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..records.rollout import Category, Failure, Phase
from ..records.wire import ARTIFACT_VARIABLE, RolloutInit, RolloutState, check_rollout_id
from .chat import ChatTransport
from .context import AgentWorkflowContext, GraderContext, WorkflowRollout
from .deadline import SelfCancelled, run_with_deadline
from .failures import failure_of, wire_category
from .grader import Grader
from .types import AgentWorkflowConfig, GraderConfig, RolloutSample
from .workflow import AgentWorkflow, AgentWorkflowOutput

DEFAULT_MAX_CONCURRENT = 4

OnState = Callable[[RolloutState], None]


@dataclass
class ExecutionResult:
    """How one rollout ended."""

    status: Literal["success", "failure", "cancelled"]
    """`failure` also when only the grader failed; `err_phase` tells."""
    sample: RolloutSample | None = None
    """What the workflow left behind; present after a grader's failure too."""
    err_phase: Phase | None = None
    err_message: str | None = None
    err_category: str | None = None
    """One of generation 0.3's words: timeout, validation_error, http_error, agent_error."""
    traceback: str | None = None
    """The last frames of user code."""
    failure: Failure | None = None
    """The same with the full set of categories."""
    duration_ms: float = 0.0
    """Workflow and grader; queueing excluded."""
    queue_ms: float = 0.0
    graded: bool = False
    """A grader ran to its end."""
    info: dict[str, Any] = field(default_factory=dict)
    """`AgentWorkflowOutput.info`."""

    @property
    def workflow_succeeded(self) -> bool:
        """The workflow itself ended well, whatever the grader did."""
        return self.status == "success" or self.err_phase is Phase.SCORE


class LocalBackend:
    """Runs rollouts in this process.

    `workflow` and `grader` are classes or `"module:Class"` strings; one instance of each is made per rollout with
    its config. At most `max_concurrent` rollouts run at once: the config's limit, 4 without a config, None = no
    limit. Waiting for a slot takes nothing off a rollout's time limits.
    """

    def __init__(
        self,
        workflow: type[AgentWorkflow[Any]] | str,
        workflow_config: AgentWorkflowConfig | None = None,
        grader: type[Grader[Any]] | str | None = None,
        grader_config: GraderConfig | None = None,
        *,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.workflow: type[AgentWorkflow[Any]] = _resolve(workflow, AgentWorkflow)
        self.workflow_config = workflow_config
        self.grader: type[Grader[Any]] | None = None if grader is None else _resolve(grader, Grader)
        self.grader_config = grader_config
        self.max_concurrent = _limit(workflow_config)
        self._grader_limit = _limit(grader_config) if grader_config else None
        # The variable is set by whoever starts the rollout's process; user code constructs this without one.
        root = (os.environ if environ is None else environ).get(ARTIFACT_VARIABLE)
        self.artifact_root = Path(root) if root else Path("~/.osmosis").expanduser()
        self.project_path = _folder_of(self.workflow)
        self._slots = _Slots(self.max_concurrent)
        self._grader_slots = _Slots(self._grader_limit)
        self.queued = 0
        """Rollouts waiting for a slot."""
        self.running = 0
        """Rollouts holding one."""

    async def execute(
        self,
        init: RolloutInit,
        *,
        on_state: OnState | None = None,
        transport: ChatTransport | None = None,
    ) -> ExecutionResult:
        """Runs the workflow, then the grader (when there is one, `init.grade`, and a label or metadata).

        `on_state` hears queued, running, grading. `transport` answers `ctx.chat()` without HTTP. Cancelling the
        caller cancels user code and passes through; everything else is a result.
        """
        tell = on_state or _nobody
        tell("queued")
        queued_at = time.monotonic()
        self.queued += 1
        waiting = True
        try:
            async with self._slots.one():
                self.queued -= 1
                waiting = False
                self.running += 1
                try:
                    started = time.monotonic()
                    tell("running")
                    result = await self._run(init, tell, transport)
                finally:
                    self.running -= 1
        finally:
            if waiting:
                self.queued -= 1
        result.queue_ms = (started - queued_at) * 1000
        result.duration_ms = (time.monotonic() - started) * 1000
        return result

    async def _run(self, init: RolloutInit, tell: OnState, transport: ChatTransport | None) -> ExecutionResult:
        rollout = WorkflowRollout(
            init.chat_completions_url,
            init.llm_api_key or init.controller_api_key or "",
            init.rollout_id or "",
            transport=transport,
        )
        with rollout:
            try:
                output = await run_with_deadline(
                    self._work(init, rollout), init.agent_timeout_sec, name=f"workflow {init.rollout_id}"
                )
                sample = await _sample_of(output, rollout)
            except SelfCancelled:
                return _cancelled(Phase.AGENT)
            except Exception as exc:  # noqa: BLE001 - one rollout: user code may raise anything
                return _failed(exc, Phase.AGENT, await _partial(rollout))
            sample.label = init.label if sample.label is None else sample.label
            info = output.info if isinstance(output, AgentWorkflowOutput) else {}
            result = ExecutionResult("success", sample=sample, info=info)
            if self.grader is None or not init.grade:
                return result
            return await self._judge(init, result, tell)

    async def _work(self, init: RolloutInit, rollout: WorkflowRollout) -> Any:
        agent = self.workflow(self.workflow_config)
        context: AgentWorkflowContext[Any] = AgentWorkflowContext(
            prompt=[dict(message) for message in init.initial_messages],
            config=self.workflow_config,
            metadata=dict(init.metadata or {}),
            artifacts_dir=self._artifacts(init),
            rollout=rollout,
        )
        return await agent.run(context)

    async def _judge(self, init: RolloutInit, result: ExecutionResult, tell: OnState) -> ExecutionResult:
        sample, grader = result.sample, self.grader
        assert sample is not None
        assert grader is not None
        if init.label is None and not init.metadata:
            failure = Failure(
                phase=Phase.SCORE,
                category=Category.SCORE_ERROR,
                message="the row has neither a label nor metadata, so there is nothing to grade against",
                fix="add a ground_truth (or label) column to the dataset",
            )
            return _with_failure(result, failure, "validation_error")
        try:
            async with self._grader_slots.one():
                tell("grading")
                await run_with_deadline(
                    self._grade(grader, init, sample), init.grader_timeout_sec, name=f"grader {init.rollout_id}"
                )
        except SelfCancelled:
            cancelled = _cancelled(Phase.SCORE)
            cancelled.sample = sample
            return cancelled
        except Exception as exc:  # noqa: BLE001 - one rollout: user code may raise anything
            sample.reward = None
            failure = failure_of(exc, Phase.SCORE)
            return _with_failure(result, failure, wire_category(failure, exc))
        if sample.remove_sample or (sample.reward is not None and math.isfinite(sample.reward)):
            result.graded = True
            return result
        failure = Failure(
            phase=Phase.SCORE,
            category=Category.INVALID_SCORE,
            message=f"{grader.__name__}.grade left no reward on the sample",
            fix="call ctx.set_reward(x) with a finite number, or set ctx.sample.remove_sample = True",
        )
        return _with_failure(result, failure, "validation_error")

    async def _grade(self, grader: type[Grader[Any]], init: RolloutInit, sample: RolloutSample) -> None:
        await grader(self.grader_config).grade(
            GraderContext(
                label=init.label,
                sample=sample,
                project_path=self.project_path,
                metadata=dict(init.metadata or {}),
                artifacts_dir=self._artifacts(init),
                config=self.grader_config,
                rollout_id=init.rollout_id or "",
            )
        )

    def _artifacts(self, init: RolloutInit) -> Path | None:
        if not init.rollout_id:
            return None
        return self.artifact_root / check_rollout_id(init.rollout_id) / "artifacts"


class _Slots:
    """A semaphore that may be used by one event loop after another (each local run brings its own)."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._loop: asyncio.AbstractEventLoop | None = None
        self._semaphore: asyncio.Semaphore | None = None

    @asynccontextmanager
    async def one(self) -> Any:
        if self._limit is None:
            yield
            return
        loop = asyncio.get_running_loop()
        if self._semaphore is None or self._loop is not loop:
            self._loop, self._semaphore = loop, asyncio.Semaphore(self._limit)
        async with self._semaphore:
            yield


def _nobody(_: RolloutState) -> None:
    return None


def _limit(config: AgentWorkflowConfig | GraderConfig | None) -> int | None:
    return DEFAULT_MAX_CONCURRENT if config is None else config.concurrency.max_concurrent


def _resolve(given: Any, base: type) -> Any:
    """The class behind a class or a `"module:Class"` string; `TypeError` when it is not a `base`."""
    found = given
    if isinstance(given, str):
        module, _, attribute = given.rpartition(":")
        if not module:
            module, _, attribute = given.rpartition(".")
        if not module or not attribute:
            raise TypeError(f"{given!r} names no class: write 'module:Class'")
        found = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    if not (inspect.isclass(found) and issubclass(found, base)):
        raise TypeError(f"{found!r} is not a subclass of {base.__name__}: give the class itself or 'module:Class'")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(getattr(found, "__abstractmethods__", ())))
        raise TypeError(f"{found.__name__} cannot be used: it does not define {missing}")
    return found


def _folder_of(cls: type) -> Path:
    try:
        return Path(inspect.getfile(cls)).resolve().parent
    except (TypeError, OSError):
        return Path.cwd()


async def _sample_of(output: Any, rollout: WorkflowRollout) -> RolloutSample:
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


async def _partial(rollout: WorkflowRollout) -> RolloutSample | None:
    """What an integration has so far, so that a failed rollout still shows its conversation."""
    try:
        return await rollout.get_sample()
    except Exception:  # noqa: BLE001 - the rollout has failed already; its own error is the one to report
        return None


def _cancelled(phase: Phase) -> ExecutionResult:
    failure = Failure(phase=phase, category=Category.CANCELLED, message="the code cancelled itself")
    return ExecutionResult(
        "cancelled", err_phase=phase, err_message=failure.message, err_category="agent_error", failure=failure
    )


def _failed(exc: Exception, phase: Phase, sample: RolloutSample | None) -> ExecutionResult:
    failure = failure_of(exc, phase)
    return _with_failure(ExecutionResult("failure", sample=sample), failure, wire_category(failure, exc))


def _with_failure(result: ExecutionResult, failure: Failure, category: str) -> ExecutionResult:
    result.status = "failure"
    result.err_phase = failure.phase
    result.err_message = failure.message
    result.err_category = category
    result.traceback = failure.traceback
    result.failure = failure
    return result
