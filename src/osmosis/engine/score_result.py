"""From a judgement to its scores: whatever a score function, rubric or grader returns, raises or does not finish.

A judgement that raises, overruns or gives no finite number is a failure, never a zero.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

from osmosis.base.numbers import as_float
from osmosis.base.plain_json import whole_text
from osmosis.errors import OsmosisError
from osmosis.records.rollout import LARGEST_SCORE, Category, Failure, Phase, Score
from osmosis.sdk.calls import contained
from osmosis.sdk.classify import failure_of, traceback_tail
from osmosis.sdk.driven import loop_user
from osmosis.sdk.judge_usage import JudgeUsage, judge_usage

from .writable import own_json

Range = tuple[float, float]
"""The least and the greatest value that a score function declares."""


async def run_score(
    name: str, call: Callable[[], Awaitable[object]], timeout_s: float | None, bounds: Range | None = None
) -> list[Score]:
    """Awaits `call()`, which may be user code on the event loop, and turns whatever comes of it into scores: one, or
    one for each key of a dict (`name.KEY`)."""
    judging = Judging(name, timeout_s, bounds)
    try:
        return judging.gave(await contained(call()))
    except Exception as error:  # noqa: BLE001 - one rollout: a score function may raise anything
        return judging.raised(error)
    finally:
        judging.close()


class Judging:
    """One judgement from its begin to its scores; what judges consume until `close` is its own."""

    __slots__ = ("_before", "_bounds", "_judged", "_name", "_started", "_timeout_s")

    def __init__(self, name: str, timeout_s: float | None, bounds: Range | None) -> None:
        self._name, self._timeout_s, self._bounds = name, timeout_s, bounds
        self._started = time.perf_counter()
        self._judged = JudgeUsage()
        self._before = judge_usage.set(self._judged)

    def gave(self, result: object) -> list[Score]:
        return self._with_usage(_scores(self._name, result, self._started, self._bounds))

    def raised(self, error: Exception) -> list[Score]:
        failure = _raised(self._name, error, self._timeout_s)
        return self._with_usage([_score(self._name, self._started, failure=failure)])

    def close(self) -> None:
        judge_usage.reset(self._before)

    def _with_usage(self, scores: list[Score]) -> list[Score]:
        if self._judged.calls and scores[0].usage is None:
            scores[0].usage = self._judged.usage
        return scores


def _raised(name: str, error: Exception, timeout_s: float | None) -> Failure:
    if isinstance(error, asyncio.TimeoutError):
        limit = "its time limit" if timeout_s is None else f"{timeout_s:g} s"
        user = loop_user.get()
        left = ", and was left behind" if user is not None and name in user.left_behind else ""
        return _failure(Category.TIMEOUT, f"{name} did not finish within {limit}{left}", error)
    failure = failure_of(error, Phase.SCORE)
    if failure.category is Category.SCORE_ERROR and not isinstance(error, OsmosisError):
        failure.message = f"{name} raised {failure.message}"
    return failure


def _scores(name: str, result: object, started: float, bounds: Range | None) -> list[Score]:
    if type(result) is float and bounds is None and abs(result) <= LARGEST_SCORE:
        return [_score(name, started, value=result)]
    if isinstance(result, (float, int)) or not isinstance(result, Mapping):  # asking for the latter is slow
        return [_judged(name, result, started, bounds)]
    if not result or not all(isinstance(key, str) and key.strip() for key in result):
        problem = "a dict without scores" if not result else "a dict whose keys are not all names"
        return [_score(name, started, failure=_failure(Category.INVALID_SCORE, f"{name} returned {problem}", None))]
    return [_judged(f"{name}.{key}", one, started, bounds) for key, one in result.items()]


def _judged(name: str, result: object, started: float, bounds: Range | None) -> Score:
    """One score, whatever was returned for it: a number or a `Score`, within the bounds that are declared."""
    score = result if isinstance(result, Score) else None
    if score is not None and score.failure is not None:
        return score.model_copy(update={"name": name})
    refused: list[str] = []
    value, problem = as_number(result if score is None else score.value)
    if problem is None and bounds is not None and not bounds[0] <= (value or 0.0) <= bounds[1]:
        problem = f"{value:g}, which is not between {bounds[0]:g} and {bounds[1]:g} as it declares"
    metadata = own_json(score.metadata, "metadata", refused) if score is not None and score.metadata else None
    if problem is None and refused:
        problem = f"metadata that cannot be stored as JSON: {refused[0]}"
    if problem is not None:
        return _score(name, started, failure=_failure(Category.INVALID_SCORE, f"{name} returned {problem}", None))
    found = _score(name, started, value=value)
    if score is not None:
        found.reason = None if score.reason is None else whole_text(score.reason)
        found.usage, found.duration_ms = score.usage, score.duration_ms or found.duration_ms
        found.parts = {whole_text(key): part for key, part in score.parts.items()} if score.parts else None
        found.metadata = metadata if isinstance(metadata, dict) else None
    return found


def as_number(result: object) -> tuple[float | None, str | None]:
    """The result as a finite number, or what is wrong with it. True and false are 1 and 0."""
    try:
        value = as_float(result)
    except ValueError as error:
        return None, str(error)
    if abs(value) > LARGEST_SCORE:
        return None, f"{value:g}, which is beyond {LARGEST_SCORE:g}: means and deviations of it cannot be computed"
    return value, None


def _score(name: str, started: float, *, value: float | None = None, failure: Failure | None = None) -> Score:
    return Score.whole(
        {
            "name": name,
            "value": value,
            "reason": None,
            "metadata": None,
            "parts": None,
            "failure": failure,
            "usage": None,
            "duration_ms": (time.perf_counter() - started) * 1000,
        }
    )


def _failure(category: Category, message: str, error: BaseException | None) -> Failure:
    trace = traceback_tail(error) if error is not None and error.__traceback__ is not None else None
    return Failure(phase=Phase.SCORE, category=category, message=message[:2000], traceback=trace)
