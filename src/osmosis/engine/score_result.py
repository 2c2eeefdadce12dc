"""From a judgement to a `Score`: whatever a score function, rubric or grader returns, raises or does not finish.

A judgement that raises, overruns or gives no finite number is a failure, never a zero.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence

from osmosis.errors import OsmosisError
from osmosis.records.rollout import LARGEST_SCORE, Category, Failure, Message, Phase, Score
from osmosis.sdk.calls import contained
from osmosis.sdk.classify import failure_of, traceback_tail
from osmosis.sdk.driven import loop_user
from osmosis.sdk.judge_usage import collect_judge_usage


async def run_score(name: str, call: Callable[[], Awaitable[object]], timeout_s: float | None) -> Score:
    """Awaits `call()` and turns whatever comes of it into a score."""
    started = time.perf_counter()
    with collect_judge_usage() as judged:
        score = await _run_score(name, call, timeout_s, started)
    if judged.calls and score.usage is None:
        score.usage = judged.usage
    return score


async def _run_score(
    name: str, call: Callable[[], Awaitable[object]], timeout_s: float | None, started: float
) -> Score:
    try:
        result = await contained(call())
    except asyncio.TimeoutError as error:
        limit = "its time limit" if timeout_s is None else f"{timeout_s:g} s"
        user = loop_user.get()
        left = ", and was left behind" if user is not None and name in user.left_behind else ""
        failure = _failure(Category.TIMEOUT, f"{name} did not finish within {limit}{left}", error)
        return _score(name, started, failure=failure)
    except Exception as error:  # noqa: BLE001 - one rollout: a score function may raise anything
        failure = failure_of(error, Phase.SCORE)
        if failure.category is Category.SCORE_ERROR and not isinstance(error, OsmosisError):
            failure.message = f"{name} raised {failure.message}"
        return _score(name, started, failure=failure)
    if isinstance(result, Score):
        return result
    value, problem = as_number(result)
    if problem:
        return _score(name, started, failure=_failure(Category.INVALID_SCORE, f"{name} returned {problem}", None))
    return _score(name, started, value=value)


def as_number(result: object) -> tuple[float | None, str | None]:
    """The result as a finite number, or what is wrong with it."""
    if not isinstance(result, (int, float)):
        unwrap = getattr(result, "item", None)  # array scalars
        if not callable(unwrap) or getattr(result, "size", 1) != 1:
            return None, f"{type(result).__name__} instead of a number"
        result = unwrap()
        if not isinstance(result, (int, float)):
            return None, f"{type(result).__name__} instead of a number"
    try:
        value = float(result)
    except OverflowError:
        return None, "a whole number too large for a float"
    if not math.isfinite(value):
        return None, f"{value}, which is not a finite number"
    if abs(value) > LARGEST_SCORE:
        return None, f"{value:g}, which is beyond {LARGEST_SCORE:g}: means and deviations of it cannot be computed"
    return value, None


def solution_of(messages: Sequence[Message]) -> str:
    """The content of the last assistant message that has any, as text."""
    for message in reversed(messages):
        if message.get("role") == "assistant" and message.get("content") is not None:
            content = message["content"]
            if isinstance(content, list):
                return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
            return str(content)
    return ""


def _score(name: str, started: float, *, value: float | None = None, failure: Failure | None = None) -> Score:
    return Score(
        name=name,
        value=value,
        reason=None,
        failure=failure,
        usage=None,
        duration_ms=(time.perf_counter() - started) * 1000,
    )


def _failure(category: Category, message: str, error: BaseException | None) -> Failure:
    trace = traceback_tail(error) if error is not None and error.__traceback__ is not None else None
    return Failure(phase=Phase.SCORE, category=category, message=message[:2000], traceback=trace)
