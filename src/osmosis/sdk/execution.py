"""What every backend shares: the result of one rollout, how failures become one, slots, and classes by name.

Nothing here runs user code; `backend.py` and `harbor/` do.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from osmosis.base.json_types import JsonObject
from osmosis.records.rollout import Failure, Phase
from osmosis.records.wire import RolloutState

from .classify import failure_of, self_cancelled, wire_category
from .types import AgentWorkflowConfig, GraderConfig, RolloutSample

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
    info: JsonObject = field(default_factory=dict)
    """`AgentWorkflowOutput.info`."""

    @property
    def workflow_succeeded(self) -> bool:
        """The workflow itself ended well, whatever the grader did."""
        return self.status == "success" or self.err_phase is Phase.SCORE


class Slots:
    """A semaphore that may be used by one event loop after another (each local run brings its own)."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self.queued = 0
        """Rollouts waiting for a slot."""
        self.running = 0
        """Rollouts holding one."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._semaphore: asyncio.Semaphore | None = None

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Holds one slot."""
        if self._limit is None:
            yield
            return
        loop = asyncio.get_running_loop()
        if self._semaphore is None or self._loop is not loop:
            self._loop, self._semaphore = loop, asyncio.Semaphore(self._limit)
        async with self._semaphore:
            yield

    async def run(self, work: Callable[[], Awaitable[ExecutionResult]], tell: OnState) -> ExecutionResult:
        """What `work` gives once it has a slot, with the time before and after; `tell` hears queued and running."""
        tell("queued")
        queued_at = time.monotonic()
        self.queued += 1
        waiting = True
        try:
            async with self.one():
                self.queued -= 1
                waiting = False
                self.running += 1
                try:
                    started = time.monotonic()
                    tell("running")
                    result = await work()
                finally:
                    self.running -= 1
        finally:
            if waiting:
                self.queued -= 1
        result.queue_ms = (started - queued_at) * 1000
        result.duration_ms = (time.monotonic() - started) * 1000
        return result


def nobody(_: RolloutState) -> None:
    return None


def limit_of(config: AgentWorkflowConfig | GraderConfig | None) -> int | None:
    return DEFAULT_MAX_CONCURRENT if config is None else config.concurrency.max_concurrent


def resolve_class(given: object, base: type) -> Any:
    """The class behind a class or a `"module:Class"` string; `TypeError` when it is not a `base`."""
    found = given
    if isinstance(given, str):
        module, _, attribute = given.rpartition(":")
        if not module:
            module, _, attribute = given.rpartition(".")
        if not module or not attribute:
            raise TypeError(f"{given!r} does not name a class: write 'module:Class'")
        found = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    if not (inspect.isclass(found) and issubclass(found, base)):
        raise TypeError(f"{found!r} is not a subclass of {base.__name__}: give the class itself or 'module:Class'")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(getattr(found, "__abstractmethods__", ())))
        raise TypeError(f"{found.__name__} cannot be used: it does not define {missing}")
    return found


def folder_of(cls: type) -> Path:
    try:
        return Path(inspect.getfile(cls)).resolve().parent
    except (TypeError, OSError):
        return Path.cwd()


def cancelled_result(phase: Phase) -> ExecutionResult:
    failure = self_cancelled(phase)
    return ExecutionResult(
        "cancelled", err_phase=phase, err_message=failure.message, err_category="agent_error", failure=failure
    )


def failed_result(exc: Exception, phase: Phase, sample: RolloutSample | None) -> ExecutionResult:
    failure = failure_of(exc, phase)
    return with_failure(ExecutionResult("failure", sample=sample), failure, wire_category(failure, exc))


def with_failure(result: ExecutionResult, failure: Failure, category: str) -> ExecutionResult:
    result.status = "failure"
    result.err_phase = failure.phase
    result.err_message = failure.message
    result.err_category = category
    result.traceback = failure.traceback
    result.failure = failure
    return result
