"""Score functions, simple (`solution_str, ground_truth, extra_info`) or full (`messages, ground_truth, metadata`). One
that is no coroutine runs in a thread, so that it can be abandoned; quick calls are handed over together, which saves a
third of the CPU of a run against a stub endpoint."""

import asyncio
import contextvars
import functools
import inspect
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from osmosis.base.jsonable import copy_json, to_valid_text
from osmosis.engine.provenance import LoadingScorers
from osmosis.engine.rollout_model import as_number, own_json
from osmosis.engine.task import Deadline
from osmosis.errors import OsmosisError
from osmosis.records.run.rollout import LARGEST_SCORE, Category, Failure, Phase, Rollout, Score
from osmosis.records.run.rows import Row
from osmosis.sdk.classify import failure_of, traceback_tail
from osmosis.sdk.judge_model import JudgeUsage, judge_usage
from osmosis.sdk.messages import solution_of
from osmosis.sdk.score_functions import bounds_of, takes_conversation
from osmosis.sdk.user_code import contain, in_thread, is_async, left_behind, loop_user

QUICK_S = 0.002
QUICK_CALLS = 8  # Calls in a row within `QUICK_S` after which a function counts as quick
STUCK_S = 0.1  # Seconds after which calls that wait behind others get a thread each

Call = Callable[[], object]


class ScoreThreads:
    """At most `size` calls run at once, a batch of quick ones counted as one."""

    def __init__(self, size: int = 16) -> None:
        self.size = size
        self._loop: asyncio.AbstractEventLoop | None = None
        self._slots = asyncio.Semaphore(size)
        self._quick: Counter[object] = Counter()
        self._batch: _Batch | None = None

    async def run(self, function: Call, timeout_s: float | None = None) -> object:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._slots, self._batch = loop, asyncio.Semaphore(self.size), None
        key = getattr(function, "func", function)
        call = partial(self._measure, key, function)
        if self._quick[key] >= QUICK_CALLS:
            if self._batch is None:
                self._batch = _Batch()
                loop.call_soon(self._start_batch, self._batch)
            return await self._wait(self._batch.add(call), timeout_s)
        async with self._slots:
            return await self._wait(in_thread(call), timeout_s)

    async def _wait(self, result: asyncio.Future[object], timeout_s: float | None) -> object:
        if timeout_s is not None and (user := loop_user.get()) is not None:
            user.ends_at = time.monotonic() + timeout_s
        return await asyncio.wait_for(result, timeout_s)

    def _start_batch(self, batch: "_Batch") -> None:
        self._batch = None
        batch.start()

    def _measure(self, key: object, function: Call) -> object:
        started = time.monotonic()
        try:
            with LoadingScorers():
                return function()
        except Exception:
            raise
        except BaseException as error:  # a SystemExit would end the event loop
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        finally:
            self._quick[key] = self._quick[key] + 1 if time.monotonic() - started <= QUICK_S else 0


class _Batch:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[Call, asyncio.Future[object]]] = deque()
        self._done: deque[tuple[asyncio.Future[object], object, Exception | None]] = deque()
        self._rescue: asyncio.TimerHandle | None = None

    def add(self, call: Call) -> asyncio.Future[object]:
        result: asyncio.Future[object] = self._loop.create_future()
        self._waiting.append((partial(contextvars.copy_context().run, call), result))
        return result

    def start(self) -> None:
        self._rescue = self._loop.call_later(STUCK_S, self._split)
        in_thread(self._work).add_done_callback(lambda _: self._deliver())

    def _work(self) -> None:
        while self._waiting:
            try:
                call, result = self._waiting.popleft()
            except IndexError:
                return  # `_split` was faster
            try:
                self._done.append((result, call(), None))
            except Exception as error:  # noqa: BLE001 - carried to the one who waits for it
                self._done.append((result, None, error))

    def _split(self) -> None:
        self._deliver()
        with suppress(IndexError):  # the thread may take the last one
            while self._waiting:
                rest = _Batch()
                rest._waiting.append(self._waiting.popleft())
                rest.start()

    def _deliver(self) -> None:
        while self._done:
            result, value, error = self._done.popleft()
            if result.done():
                continue
            if error is None:
                result.set_result(value)
            elif isinstance(error, StopIteration):  # a future refuses this one
                result.set_exception(RuntimeError(f"the function raised StopIteration: {error}"))
            else:
                result.set_exception(error)
        if not self._waiting and self._rescue is not None:
            self._rescue.cancel()


class Scorer(Protocol):
    """A judgement of a finished rollout. `score` never raises for the function's own failure."""

    name: str

    @property
    def bounds(self) -> "Range | None": ...

    async def score(self, rollout: Rollout, row: Row) -> Sequence[Score]: ...


class FunctionScorer:
    def __init__(
        self,
        name: str,
        function: Callable[..., object],
        *,
        threads: ScoreThreads | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self.name = name
        self.function = function
        self.timeout_s = timeout_s
        self.bounds = bounds_of(function)
        self.full = takes_conversation(name, function)
        self._threads = threads or ScoreThreads()
        self._is_async = is_async(function)

    async def score(self, rollout: Rollout, row: Row) -> Sequence[Score]:
        function: Callable[..., Any] = self.function
        # What a program agent left (exit status, output, diff) is a grader's business as much as the row is.
        data = {**row.data, "command": rollout.info["command"]} if "command" in rollout.info else row.data
        if self.full:
            arguments: dict[str, Any] = {"messages": copy_json(rollout.messages), "metadata": copy_json(data)}
        else:
            arguments = {"solution_str": solution_of(rollout.messages), "extra_info": copy_json(data)}
        call = functools.partial(function, ground_truth=row.ground_truth, **arguments)
        judging = Judging(self.name, self.timeout_s, self.bounds)
        try:
            if self._is_async:
                return judging.gave(await self._limited(call()))
            result: Any = await self._threads.run(call, self.timeout_s)
            if inspect.isawaitable(result):
                result = await self._limited(result)  # a plain function that hands back a coroutine
            return judging.gave(result)
        except Exception as error:  # noqa: BLE001 - one rollout: a score function may raise anything
            return judging.raised(error)
        finally:
            judging.close()

    async def _limited(self, work: Awaitable[object]) -> object:
        return await Deadline(self.timeout_s).run(work, self.name)


Range = tuple[float, float]


async def run_score(name: str, call: Callable[[], Awaitable[object]], timeout_s: float | None) -> list[Score]:
    """Await `call()`, which may be user code, and turn its result or error into scores, one per key of a dict."""
    judging = Judging(name, timeout_s, None)
    try:
        return judging.gave(await contain(call()))
    except Exception as error:  # noqa: BLE001 - one rollout: a score function may raise anything
        return judging.raised(error)
    finally:
        judging.close()


class Judging:
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
        left = ", and was left behind" if name in (left_behind.get() or ()) else ""
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
    return [_judged(f"{name}.{key}", value, started, bounds) for key, value in result.items()]


def _judged(name: str, result: object, started: float, bounds: Range | None) -> Score:
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
    judged = _score(name, started, value=value)
    if score is not None:
        judged.reason = None if score.reason is None else to_valid_text(score.reason)
        judged.usage, judged.duration_ms = score.usage, score.duration_ms or judged.duration_ms
        judged.parts = {to_valid_text(key): part for key, part in score.parts.items()} if score.parts else None
        judged.metadata = metadata if isinstance(metadata, dict) else None
    return judged


def _score(name: str, started: float, *, value: float | None = None, failure: Failure | None = None) -> Score:
    return Score(value, name=name, failure=failure, duration_ms=(time.perf_counter() - started) * 1000)


def _failure(category: Category, message: str, error: BaseException | None) -> Failure:
    trace = traceback_tail(error) if error is not None and error.__traceback__ is not None else None
    return Failure(phase=Phase.SCORE, category=category, message=message[:2000], traceback=trace)
