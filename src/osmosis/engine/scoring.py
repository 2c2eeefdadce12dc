"""Score functions: `module:function` in the simple form (`solution_str, ground_truth, extra_info`) or the full form
(`messages, ground_truth, metadata`), sync or async, found out by the first parameter's name.

A function returns a number, a `Score`, or a dict of either by name. The signature is checked when the function is
loaded, before anything is spent. A function that raises, overruns or returns no finite number leaves a failure, never a
zero.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from osmosis.base.plain_json import own_copy
from osmosis.errors import LoadError
from osmosis.records.dataset import Row
from osmosis.records.rollout import Rollout, Score
from osmosis.sdk.calls import as_coroutine, is_async
from osmosis.sdk.driven import loop_user
from osmosis.sdk.messages import solution_of
from osmosis.sdk.score_functions import bounds_of, is_full

from .clock import Deadline
from .loader import load_object
from .pool import DaemonPool
from .score_result import Judging, Range


class Scorer(Protocol):
    """One judgement of a finished rollout. `score` never raises for the function's own failure."""

    name: str

    @property
    def bounds(self) -> Range | None:
        """The least and the greatest score, when they are declared."""
        ...

    async def score(self, rollout: Rollout, row: Row) -> Sequence[Score]:
        """One score, or several named ones."""
        ...


class FunctionScorer:
    """A score function in either form."""

    def __init__(
        self,
        name: str,
        function: Callable[..., object],
        *,
        pool: DaemonPool | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self.name = name
        self.function = function
        self.timeout_s = timeout_s
        self.bounds = bounds_of(function)
        self.full = is_full(name, function)
        self._pool = pool or DaemonPool()
        self._is_async = is_async(function)

    async def score(self, rollout: Rollout, row: Row) -> Sequence[Score]:
        function: Callable[..., Any] = self.function
        if self.full:
            call = functools.partial(
                function,
                messages=own_copy(rollout.messages),
                ground_truth=row.ground_truth,
                metadata=own_copy(row.data),
            )
        else:
            call = functools.partial(
                function,
                solution_str=solution_of(rollout.messages),
                ground_truth=row.ground_truth,
                extra_info=own_copy(row.data),
            )
        judging = Judging(self.name, self.timeout_s, self.bounds)
        try:
            if self._is_async:
                return judging.gave(await self._limited(call()))
            # The thread works in this context, so that what a judge consumes is counted for this score.
            within = functools.partial(contextvars.copy_context().run, call)
            result: Any = await self._pool.start(within, self.timeout_s)
            if type(result) is not float and inspect.isawaitable(result):
                result = await self._limited(result)  # a plain function that hands back a coroutine
            return judging.gave(result)
        except Exception as error:  # noqa: BLE001 - one rollout: a score function may raise anything
            return judging.raised(error)
        finally:
            judging.close()

    async def _limited(self, work: Awaitable[object]) -> object:
        limit = Deadline(self.timeout_s)
        try:
            with limit:
                return await limit.run(as_coroutine(work))
        except asyncio.TimeoutError:
            if limit.given_up and (user := loop_user.get()) is not None:
                user.left_behind.append(self.name)
            raise


def load_scorers(
    paths: Sequence[str],
    base_dir: Path,
    *,
    timeout_s: float | None = None,
    pool: DaemonPool | None = None,
    environ: Mapping[str, str] | None = None,
    functions: Mapping[str, Callable[..., object]] | None = None,
) -> list[Scorer]:
    """The score functions as given, `module:function` or `rubric:file.yaml#id`; `functions` are there already.

    Raises `LoadError` for one that is missing, named twice or has another shape. `environ` holds judges' keys.
    """
    doubled = sorted({path for path in paths if list(paths).count(path) > 1})
    if doubled:
        raise LoadError(f"score function listed twice: {', '.join(doubled)}", hint="name each --eval-fn once")
    pool = pool or DaemonPool()
    scorers: list[Scorer] = []
    for path in paths:
        if path.startswith("rubric:"):
            from .rubrics.rubric_scorer import RubricScorer  # brings YAML and the judge along

            scorers.append(RubricScorer.load(path, base_dir, timeout_s=timeout_s, environ=environ))
            continue
        found = functions[path] if functions and path in functions else load_object(path, base_dir)
        if isinstance(found, type):
            found = found()
        if not callable(found):
            raise LoadError(f"{path} is a {type(found).__name__}, not a function", hint="name a score function")
        scorers.append(FunctionScorer(path, found, pool=pool, timeout_s=timeout_s))
    return scorers


async def close_scorers(scorers: Sequence[Scorer]) -> None:
    """Lets go of what scorers hold: a judge's connection, for one."""
    for scorer in scorers:
        close = getattr(scorer, "close", None)
        if close is not None:
            await close()
