"""Evaluation of generation 0.2 in Python. As then, a missing score counts 0.0 in the means; a function that raised is
named in the run's `error`, so that it cannot be taken for a judgement."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from osmosis.base.jsonable import JsonObject
from osmosis.base.stats import pass_at_k as pass_at_k
from osmosis.compat.dataset_reader import EvalFnError
from osmosis.compat.runner import Client, LocalRolloutRunner, LocalRunResult, RunOne, close_client, run_rows
from osmosis.engine.loader import load_object
from osmosis.engine.rubrics.conversations import RubricRecord
from osmosis.engine.rubrics.rubric_files import RubricConfig
from osmosis.engine.rubrics.rubric_run import ask_function
from osmosis.engine.scoring import FunctionScorer, Scorer
from osmosis.engine.task import Task
from osmosis.errors import LoadError
from osmosis.records.run.report import ScoreReport
from osmosis.records.run.rollout import Rollout, RolloutStatus
from osmosis.records.run.rows import Row
from osmosis.sdk.agent_loop import RolloutAgentLoop
from osmosis.sdk.evaluate_rubric import background, evaluate_rubric


class EvalFnWrapper:
    def __init__(self, fn: Callable[..., object], name: str) -> None:
        self.fn = fn
        self.name = name
        try:
            self.scorer = FunctionScorer(name, fn)
        except LoadError as exc:
            raise EvalFnError(exc.message, hint=exc.hint) from exc
        self.mode = "full" if self.scorer.full else "simple"

    async def __call__(self, messages: list[JsonObject], row: JsonObject) -> float:
        rollout = Rollout.model_construct(
            rollout_id="eval", row_index=0, attempt=0, status=RolloutStatus.SUCCESS, messages=messages, scores={}
        )
        score, *_ = await self.scorer.score(rollout, Row(index=0, data=row))
        if score.failure is not None or score.value is None:
            raise EvalFnError(f"{self.name}: {score.failure.message if score.failure else 'no score'}")
        return score.value


def load_eval_fn(path: str, base_dir: str | os.PathLike[str] = ".") -> EvalFnWrapper:
    try:
        function = load_object(path, Path(base_dir))
    except LoadError as exc:
        raise EvalFnError(exc.message, hint=exc.hint) from exc
    if not callable(function):
        raise EvalFnError(f"{path} is {type(function).__name__}, not a function")
    return EvalFnWrapper(function, path)


def load_eval_fns(paths: Sequence[str], base_dir: str | os.PathLike[str] = ".") -> list[EvalFnWrapper]:
    twice = sorted({path for path in paths if list(paths).count(path) > 1})
    if twice:
        raise EvalFnError(f"listed twice: {', '.join(twice)}")
    return [load_eval_fn(path, base_dir) for path in paths]


@dataclass
class EvalRunResult:
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


class EvalRunner:
    """Runs rows n times through an agent loop and scores them; `llm_client_factory` makes one client per lane."""

    def __init__(
        self,
        agent_loop: RolloutAgentLoop,
        llm_client: Client,
        eval_fns: Sequence[EvalFnWrapper],
        debug: bool = False,
        debug_dir: str | os.PathLike[str] | None = None,
        llm_client_factory: Callable[[], object] | None = None,
    ) -> None:
        self.agent_loop = agent_loop
        self.llm_client = llm_client
        self.eval_fns = list(eval_fns)
        self._debug = (debug, debug_dir)
        self._factory = llm_client_factory

    async def run_single(
        self,
        row: JsonObject,
        row_index: int,
        run_index: int,
        max_turns: int = 10,
        completion_params: JsonObject | None = None,
        runner: LocalRolloutRunner | None = None,
    ) -> EvalRunResult:
        lane = self._lane(runner or self._runner(self.llm_client), max_turns, completion_params, run_index)
        rollouts: list[Rollout] = []
        await run_rows([row], [lane], rollouts.append, start_index=row_index, scorers=self._scorers())
        return _run_of(rollouts[0], run_index)

    async def run_eval(
        self,
        rows: Sequence[JsonObject],
        n_runs: int = 1,
        max_turns: int = 10,
        completion_params: JsonObject | None = None,
        pass_threshold: float = 1.0,
        on_progress: Callable[[int, int, EvalRunResult], None] | None = None,
        start_index: int = 0,
        batch_size: int = 1,
    ) -> EvalResult:
        total = len(rows) * n_runs
        results = [EvalRowResult(start_index + index, []) for index in range(len(rows))]
        finished = 0

        def on_rollout(rollout: Rollout) -> None:
            nonlocal finished
            finished += 1
            run = _run_of(rollout, rollout.attempt)
            results[rollout.row_index - start_index].runs.append(run)
            if on_progress is not None:
                on_progress(finished, total, run)

        lanes, factory = min(batch_size, total), self._factory
        clients: list[Any] = [self.llm_client] if factory is None or lanes <= 1 else [factory() for _ in range(lanes)]
        try:
            report = await run_rows(
                rows,
                [self._lane(self._runner(client), max_turns, completion_params) for client in clients],
                on_rollout,
                start_index=start_index,
                attempts=n_runs,
                pass_threshold=pass_threshold,
                scorers=self._scorers(),
            )
        finally:
            for client in clients:
                if client is not self.llm_client:
                    await close_client(client)
        for row in results:
            row.runs.sort(key=lambda run: run.run_index)
        runs = [run for row in results for run in row.runs]
        return EvalResult(
            rows=results,
            eval_summaries={score.name: _summary(score) for score in report.scores},
            total_rows=len(results),
            total_runs=len(runs),
            total_tokens=sum(run.tokens for run in runs),
            total_duration_ms=sum(run.duration_ms for run in runs),
            n_runs=n_runs,
            pass_threshold=pass_threshold,
        )

    def _lane(
        self,
        runner: LocalRolloutRunner,
        max_turns: int,
        completion_params: JsonObject | None,
        run_index: int | None = None,
    ) -> RunOne:
        async def attempt(task: Task) -> LocalRunResult:
            run = task.attempt if run_index is None else run_index
            return await runner.run_single(
                task.row.data,
                task.row.index,
                max_turns,
                completion_params,
                rollout_id=f"eval-{task.row.index}-run-{run}",
                request_metadata={"execution_mode": "eval", "run_index": run},
            )

        return attempt

    def _scorers(self) -> list[Scorer]:
        return [fn.scorer for fn in self.eval_fns]

    def _runner(self, client: Any) -> LocalRolloutRunner:
        debug, folder = self._debug
        return LocalRolloutRunner(self.agent_loop, client, debug, folder, rollout_id_prefix="eval")


def _run_of(rollout: Rollout, run_index: int) -> EvalRunResult:
    broken = [score for score in rollout.scores.values() if score.failure is not None]
    error = rollout.failure.message if rollout.failure else None
    if broken and broken[-1].failure is not None:
        error = f"{broken[-1].name}: {broken[-1].failure.message}"
    return EvalRunResult(
        run_index,
        rollout.failure is None,
        scores={name: score.value or 0.0 for name, score in rollout.scores.items()},
        duration_ms=rollout.duration_ms,
        tokens=rollout.usage.total_tokens,
        error=error,
    )


def _summary(score: ScoreReport) -> EvalEvalSummary:
    return EvalEvalSummary(
        mean=score.mean or 0.0,
        std=score.std or 0.0,
        min=score.min or 0.0,
        max=score.max or 0.0,
        pass_at_k={estimate.k: estimate.value for estimate in score.pass_at_k},
    )


class RubricEvaluator:
    """`RubricEvaluator().run(config, record)`; a function with a `rubric` or `model_info` parameter or `**kwargs` is
    called like `evaluate_rubric`, any other as `(solution_str, ground_truth, extra_info)`."""

    def __init__(self, evaluate_fn: Callable[..., object] = evaluate_rubric) -> None:
        self._function = evaluate_fn

    def run(self, config: RubricConfig, record: RubricRecord) -> JsonObject:
        score, explanation, raw = background.run(ask_function(config, record, self._function))
        return {"score": score, "explanation": explanation, "raw": raw}
