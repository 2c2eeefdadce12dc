import asyncio
import atexit
import threading
from collections.abc import Coroutine, Generator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, TypeVar, overload

from typing_extensions import Unpack

from osmosis.base.jsonable import JsonObject
from osmosis.sdk.judge import Judge, JudgeQuestion, RewardRubricRunResult, Verdict, make_question
from osmosis.sdk.judge_model import ModelInfo, info_of, judge_usage

T = TypeVar("T")


class RubricOptions(TypedDict, total=False):
    ground_truth: str | None
    original_input: str | None
    metadata: JsonObject | None
    score_min: float | None
    score_max: float | None
    timeout: float | None


Info = ModelInfo | Mapping[str, object]


@overload
def evaluate_rubric(
    rubric: str, solution_str: str, model_info: Info, *, return_details: Literal[True], **options: Unpack[RubricOptions]
) -> RewardRubricRunResult: ...
@overload
def evaluate_rubric(
    rubric: str,
    solution_str: str,
    model_info: Info,
    *,
    return_details: Literal[False] = ...,
    **options: Unpack[RubricOptions],
) -> float: ...
def evaluate_rubric(
    rubric: str,
    solution_str: str,
    model_info: Info,
    *,
    ground_truth: str | None = None,
    original_input: str | None = None,
    metadata: JsonObject | None = None,
    score_min: float | None = None,
    score_max: float | None = None,
    timeout: float | None = None,
    return_details: bool = False,
) -> float | RewardRubricRunResult:
    """Return the judge's score within [score_min, score_max] (0 to 1 by default), or all details. Bounds and
    `original_input` given here win over `model_info`'s. `timeout` is seconds, retries included. Raise `TypeError` for
    missing text, `ValueError` for bounds, `MissingAPIKeyError`, `ModelNotFoundError`, `ProviderRequestError`. In
    coroutines use `evaluate_rubric_async`."""
    judge = Judge(model_info, timeout=timeout)
    question = make_question(
        rubric, solution_str, model_info, ground_truth, original_input, metadata, (score_min, score_max)
    )
    verdict = background.run(_ask(judge, question))
    return verdict.details() if return_details else verdict.score


async def evaluate_rubric_async(
    rubric: str,
    solution_str: str,
    model_info: Info,
    *,
    ground_truth: str | None = None,
    original_input: str | None = None,
    metadata: JsonObject | None = None,
    score_min: float | None = None,
    score_max: float | None = None,
    timeout: float | None = None,
    return_details: bool = False,
) -> float | RewardRubricRunResult:
    judge = Judge(model_info, timeout=timeout)
    question = make_question(
        rubric, solution_str, model_info, ground_truth, original_input, metadata, (score_min, score_max)
    )
    verdict = await _ask(judge, question)
    return verdict.details() if return_details else verdict.score


def judge_solution(
    *,
    solution_str: str,
    rubric: str,
    model: str,
    ground_truth: str | None = None,
    original_input: str | None = None,
    metadata: JsonObject | None = None,
    score_min: float = 0.0,
    score_max: float = 1.0,
    api_key: str | None = None,
    timeout: float | None = None,
    system_prompt: str | None = None,
) -> "RubricResult":
    """Run generation 0.3's `evaluate_rubric`, the judge by one name (`provider/model`, or LiteLLM's). In a coroutine it
    returns at once, to be awaited; everywhere else it blocks."""
    info: JsonObject = dict(info_of(model))
    if api_key:
        info["api_key"] = api_key
    if system_prompt:
        info["system_prompt"] = system_prompt
    judge = Judge(info, timeout=timeout)
    question = make_question(rubric, solution_str, info, ground_truth, original_input, metadata, (score_min, score_max))

    async def judged() -> RubricResult:
        verdict = await _ask(judge, question)
        return RubricResult(verdict.score, verdict.explanation)

    return background.result_of(judged())


async def _ask(judge: Judge, question: JudgeQuestion) -> Verdict:
    async with judge:
        return await judge.ask(question)


@dataclass(frozen=True)
class RubricResult:
    score: float
    explanation: str

    def __await__(self) -> "Generator[Any, None, RubricResult]":
        return self
        yield


class PendingRubricResult(RubricResult):
    """A `RubricResult` in the making: awaiting it does not block the event loop, reading its fields does."""

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


class _BackgroundLoop:
    """One event loop in a daemon thread, for blocking callers and for those inside a running loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        future = self._start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def result_of(self, work: Coroutine[Any, Any, RubricResult]) -> RubricResult:
        """Run `work`; in a coroutine, which must not be blocked, return a result to be awaited."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self.run(work)
        return PendingRubricResult(self._start(work))

    def _start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        collected = judge_usage.get()

        async def counted() -> T:
            judge_usage.set(collected)
            return await work

        return asyncio.run_coroutine_threadsafe(counted(), self._started())

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._loop.is_closed():
                self._loop = asyncio.new_event_loop()
                thread = threading.Thread(target=self._loop.run_forever, name="osmosis-judge", daemon=True)
                thread.start()
                # One that is frozen at exit may hold an import lock, which LiteLLM's clients wait for as they go.
                atexit.register(self._stop, self._loop, thread)
            return self._loop

    @staticmethod
    def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)


background = _BackgroundLoop()
