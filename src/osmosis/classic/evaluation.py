"""Evaluation of generation 0.2 in Python: eval functions, `EvalRunner`, and its summaries.

As then, a missing score counts 0.0 in the means; a function that raised is named in the run's `error`, so that it
cannot be taken for a judgement.
"""

from __future__ import annotations

import asyncio
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..base.stats import DEFAULT_KS, pass_at_k
from ..engine.loader import load_object
from ..engine.scoring import FunctionScorer
from ..errors import LoadError
from ..records.dataset import Row
from ..records.rollout import Rollout, RolloutStatus
from ..sdk.agent_loop import RolloutAgentLoop
from .errors import EvalFnError
from .runner import LocalRolloutRunner

__all__ = [
    "EvalEvalSummary",
    "EvalFnWrapper",
    "EvalResult",
    "EvalRowResult",
    "EvalRunResult",
    "EvalRunner",
    "load_eval_fn",
    "load_eval_fns",
    "pass_at_k",
]


class EvalFnWrapper:
    """An eval function in either form; `EvalFnError` when it has another."""

    def __init__(self, fn: Callable[..., Any], name: str) -> None:
        self.fn = fn
        self.name = name
        try:
            self._scorer = FunctionScorer(name, fn)
        except LoadError as exc:
            raise EvalFnError(exc.message, hint=exc.hint) from exc
        self.mode = "full" if self._scorer.full else "simple"

    async def __call__(self, messages: list[dict[str, Any]], row: dict[str, Any]) -> float:
        """The score of a conversation; `EvalFnError` when the function raised or gave no finite number."""
        rollout = Rollout.model_construct(
            rollout_id="eval", row_index=0, attempt=0, status=RolloutStatus.SUCCESS, messages=messages, scores={}
        )
        score = await self._scorer.score(rollout, Row.model_construct(index=0, data=row, line=None))
        if score.failure is not None or score.value is None:
            raise EvalFnError(f"{self.name}: {score.failure.message if score.failure else 'no score'}")
        return score.value


def load_eval_fn(path: str, base_dir: str | os.PathLike[str] = ".") -> EvalFnWrapper:
    """`module:function`, with `base_dir` on the import path."""
    try:
        found = load_object(path, Path(base_dir))
    except LoadError as exc:
        raise EvalFnError(exc.message, hint=exc.hint) from exc
    if not callable(found):
        raise EvalFnError(f"{path} is {type(found).__name__}, not a function")
    return EvalFnWrapper(found, path)


def load_eval_fns(paths: Sequence[str], base_dir: str | os.PathLike[str] = ".") -> list[EvalFnWrapper]:
    """Several; the same path twice is refused."""
    twice = sorted({path for path in paths if list(paths).count(path) > 1})
    if twice:
        raise EvalFnError(f"named twice: {', '.join(twice)}")
    return [load_eval_fn(path, base_dir) for path in paths]


@dataclass
class EvalRunResult:
    """One run of one row."""

    run_index: int
    success: bool
    scores: dict[str, float] = field(default_factory=dict)
    duration_ms: float = 0.0
    tokens: int = 0
    error: str | None = None


@dataclass
class EvalRowResult:
    row_index: int
    runs: list[EvalRunResult]


@dataclass
class EvalEvalSummary:
    """One eval function over all runs; missing scores count 0.0, the deviation is the population's."""

    mean: float
    std: float
    min: float
    max: float
    pass_at_k: dict[int, float] = field(default_factory=dict)


@dataclass
class EvalResult:
    rows: list[EvalRowResult]
    eval_summaries: dict[str, EvalEvalSummary]
    total_rows: int
    total_runs: int
    total_tokens: int
    total_duration_ms: float
    n_runs: int
    pass_threshold: float


OnRun = Callable[[int, int, EvalRunResult], None]


class EvalRunner:
    """Runs rows n times through an agent loop and scores them.

    With `batch_size` above 1, `llm_client_factory` makes one client per lane.
    """

    def __init__(
        self,
        agent_loop: RolloutAgentLoop,
        llm_client: Any,
        eval_fns: Sequence[EvalFnWrapper],
        debug: bool = False,
        debug_dir: str | os.PathLike[str] | None = None,
        llm_client_factory: Callable[[], Any] | None = None,
    ) -> None:
        self.agent_loop = agent_loop
        self.llm_client = llm_client
        self.eval_fns = list(eval_fns)
        self._debug = (debug, debug_dir)
        self._factory = llm_client_factory

    async def run_single(
        self,
        row: dict[str, Any],
        row_index: int,
        run_index: int,
        max_turns: int = 10,
        completion_params: dict[str, Any] | None = None,
        runner: LocalRolloutRunner | None = None,
    ) -> EvalRunResult:
        """One run, scored."""
        done = await (runner or self._runner(self.llm_client)).run_single(
            row,
            row_index,
            max_turns,
            completion_params,
            rollout_id=f"eval-{row_index}-run-{run_index}",
            request_metadata={"execution_mode": "eval", "run_index": run_index},
        )
        run = EvalRunResult(
            run_index,
            done.success,
            duration_ms=done.duration_ms,
            tokens=done.token_usage.get("total_tokens", 0),
            error=done.error,
        )
        if done.success and done.result is not None:
            for fn in self.eval_fns:
                try:
                    run.scores[fn.name] = await fn(done.result.final_messages, row)
                except EvalFnError as exc:
                    run.scores[fn.name] = 0.0
                    run.error = exc.message
        return run

    async def run_eval(
        self,
        rows: Sequence[dict[str, Any]],
        n_runs: int = 1,
        max_turns: int = 10,
        completion_params: dict[str, Any] | None = None,
        pass_threshold: float = 1.0,
        on_progress: OnRun | None = None,
        start_index: int = 0,
        batch_size: int = 1,
    ) -> EvalResult:
        """Every row `n_runs` times, `batch_size` at once; results in order of row and run."""
        tasks = [(index, run) for index in range(len(rows)) for run in range(n_runs)]
        queue, finished = iter(tasks), 0
        done: dict[tuple[int, int], EvalRunResult] = {}

        async def lane(client: Any) -> None:
            nonlocal finished
            runner = self._runner(client)
            for index, run in queue:
                result = await self.run_single(
                    rows[index], start_index + index, run, max_turns, completion_params, runner
                )
                done[(index, run)] = result
                finished += 1
                if on_progress is not None:
                    on_progress(finished, len(tasks), result)

        clients = self._clients(min(batch_size, len(tasks)))
        try:
            await asyncio.gather(*(lane(client) for client in clients))
        finally:
            for client in clients:
                if client is not self.llm_client:
                    await client.close()
        results = [
            EvalRowResult(start_index + index, [done[(index, run)] for run in range(n_runs)])
            for index in range(len(rows))
        ]
        return self._result(results, n_runs, pass_threshold)

    def _runner(self, client: Any) -> LocalRolloutRunner:
        debug, folder = self._debug
        return LocalRolloutRunner(self.agent_loop, client, debug, folder, rollout_id_prefix="eval")

    def _clients(self, count: int) -> list[Any]:
        if count <= 1 or self._factory is None:
            return [self.llm_client]
        return [self._factory() for _ in range(count)]

    def _result(self, rows: list[EvalRowResult], n_runs: int, threshold: float) -> EvalResult:
        runs = [run for row in rows for run in row.runs]
        return EvalResult(
            rows=rows,
            eval_summaries={fn.name: _summary(fn.name, rows, n_runs, threshold) for fn in self.eval_fns},
            total_rows=len(rows),
            total_runs=len(runs),
            total_tokens=sum(run.tokens for run in runs),
            total_duration_ms=sum(run.duration_ms for run in runs),
            n_runs=n_runs,
            pass_threshold=threshold,
        )


def _summary(name: str, rows: list[EvalRowResult], n_runs: int, threshold: float) -> EvalEvalSummary:
    table = [[run.scores.get(name, 0.0) for run in row.runs] for row in rows]
    scores = [score for row in table for score in row] or [0.0]
    at_k = {}
    if n_runs > 1 and table:
        passes = [sum(score >= threshold for score in row) for row in table]
        for k in (k for k in DEFAULT_KS if k <= n_runs):
            at_k[k] = statistics.fmean(pass_at_k(n_runs, passed, k) for passed in passes)
    return EvalEvalSummary(
        mean=statistics.fmean(scores),
        std=statistics.pstdev(scores),
        min=min(scores),
        max=max(scores),
        pass_at_k=at_k,
    )
