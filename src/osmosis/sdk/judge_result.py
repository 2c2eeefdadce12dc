"""What a judge gives back and what it costs, and the thread in which blocking callers wait for it.

Costs are added up per block of code, so that whoever scores can tell the judge's tokens from the agent's.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Generator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypedDict, TypeVar

from ..records.rollout import Usage

T = TypeVar("T")


class RewardRubricRunResult(TypedDict):
    """What `return_details=True` gives."""

    score: float
    explanation: str
    raw: Any
    """The provider's answer: id, model, choices, usage."""
    usage: dict[str, Any]
    """`prompt_tokens`, `completion_tokens`, `cached_tokens`, `cost_usd` (None = unknown price)."""
    duration_ms: float


@dataclass(frozen=True)
class Verdict:
    """One judgement."""

    score: float
    explanation: str
    usage: Usage
    duration_ms: float
    raw: dict[str, Any] = field(default_factory=dict, repr=False)

    def details(self) -> RewardRubricRunResult:
        return {
            "score": self.score,
            "explanation": self.explanation,
            "raw": self.raw,
            "usage": self.usage.model_dump(),
            "duration_ms": self.duration_ms,
        }


@dataclass(frozen=True)
class RubricResult:
    """What generation 0.3's `evaluate_rubric` gives. May be awaited, which gives itself."""

    score: float
    explanation: str

    def __await__(self) -> Generator[Any, None, RubricResult]:
        return self
        yield


class PendingRubricResult(RubricResult):
    """A `RubricResult` that is still being found out: awaiting it does not block the event loop, looking at it does."""

    def __init__(self, future: Future[RubricResult]) -> None:
        object.__setattr__(self, "_future", future)

    def __getattribute__(self, name: str) -> Any:
        if name in ("score", "explanation"):
            return getattr(object.__getattribute__(self, "_future").result(), name)
        return object.__getattribute__(self, name)

    def __await__(self) -> Generator[Any, None, RubricResult]:
        future: Future[RubricResult] = object.__getattribute__(self, "_future")
        return (yield from asyncio.wrap_future(future).__await__())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RubricResult):
            return NotImplemented
        return (self.score, self.explanation) == (other.score, other.explanation)

    def __hash__(self) -> int:
        return hash((self.score, self.explanation))


@dataclass
class JudgeUsage:
    """What the judges inside a `collect_judge_usage` block consumed."""

    usage: Usage = field(default_factory=Usage)
    calls: int = 0


_usage: ContextVar[JudgeUsage | None] = ContextVar("osmosis_judge_usage", default=None)


@contextmanager
def collect_judge_usage() -> Iterator[JudgeUsage]:
    """Adds up what every judge called inside the block consumed, on this task and in threads it starts."""
    collected = JudgeUsage()
    token = _usage.set(collected)
    try:
        yield collected
    finally:
        _usage.reset(token)


def count_usage(usage: Usage) -> None:
    """Adds to the block this runs in, when there is one."""
    collected = _usage.get()
    if collected is not None:
        collected.usage = collected.usage + usage
        collected.calls += 1


class _BackgroundLoop:
    """One event loop in a daemon thread for blocking callers: clients keep their connections between calls, and
    a caller that is itself inside a running loop can still wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`; blocks the caller's thread."""
        future = self._start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def result_of(self, work: Coroutine[Any, Any, RubricResult]) -> RubricResult:
        """`run`, except in a coroutine, which must not be blocked: there it is a result to be awaited."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self.run(work)
        return PendingRubricResult(self._start(work))

    def _start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        collected = _usage.get()

        async def counted() -> T:
            _usage.set(collected)
            return await work

        return asyncio.run_coroutine_threadsafe(counted(), self._started())

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._loop.is_closed():
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="osmosis-judge", daemon=True).start()
            return self._loop


background = _BackgroundLoop()
