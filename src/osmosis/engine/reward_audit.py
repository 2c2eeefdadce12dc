import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from osmosis.base.jsonable import copy_json
from osmosis.engine.load_agent import close_scorers, load_agent, load_scorers
from osmosis.engine.loader import load_object
from osmosis.engine.rollout_model import REWARD
from osmosis.engine.scoring import Range, Scorer
from osmosis.errors import LoadError
from osmosis.metrics.reward_audit import ALLOWED, Battery, Key, Probe, Scored, changed, judge, probes_of, suspects
from osmosis.records.run.rollout import Rollout, RolloutStatus, Score
from osmosis.records.run.rows import Row
from osmosis.sdk.backend import ExecutionResult, GraderRunner, WorkflowTask
from osmosis.sdk.types import RolloutSample
from osmosis.sdk.workflow import Grader, GraderClass

_TWICE = ("truth", "another row's truth", "empty")
_TWICE_ROWS = 10
LEAST_CALLS = 24  # How often a probe that seems to be free is scored again, over all rows, when scores waver
_ByScore = dict[str, tuple[dict[Key, Scored], dict[Key, list[Scored]]]]


@dataclass
class GraderScorer:
    runner: GraderRunner
    timeout_s: float | None = None
    name: str = REWARD
    bounds: Range | None = None

    async def score(self, rollout: Rollout, row: Row) -> Sequence[Score]:
        metadata = row.data if row.metadata is None else row.metadata
        task = WorkflowTask(
            row.messages(), row.ground_truth, metadata, rollout.rollout_id, grader_timeout_s=self.timeout_s
        )
        sample = RolloutSample(messages=copy_json(rollout.messages), label=row.ground_truth)
        grade = await self.runner.grade(task, ExecutionResult("success", sample))
        if grade.failure is not None:
            return [Score(name=self.name, failure=grade.failure)]
        return [Score(sample.reward, name=self.name)]


def load_reward(
    target: str, base_dir: Path, *, timeout_s: float | None = None, environ: Mapping[str, str] | None = None
) -> Scorer:
    if target.startswith("rubric:"):
        return load_scorers([target], base_dir, timeout_s=timeout_s, environ=environ)[0]
    target_object = load_object(target, base_dir) if ":" in target else None
    if isinstance(target_object, type) and issubclass(target_object, Grader):
        grader: GraderClass = target_object
        return GraderScorer(GraderRunner(grader, project_path=base_dir), timeout_s=timeout_s)
    if callable(target_object) and not isinstance(target_object, type):
        return load_scorers([target], base_dir, timeout_s=timeout_s, environ=environ)[0]
    backend = load_agent(target, base_dir).backend
    if backend is None or backend.grader is None:
        raise LoadError(f"{target} has no grader", hint="name a score function (rewards:exact) or rubric:FILE#ID")
    return GraderScorer(GraderRunner(backend.grader, backend.grader_config, backend.project_path), timeout_s=timeout_s)


async def try_reward(
    scorer: Scorer,
    rows: Sequence[Row],
    *,
    forms: Sequence[str] = (),
    allowed: float = ALLOWED,
    concurrency: int = 1,
    on_progress: Callable[[int, int], None] = lambda done, of: None,
) -> list[Battery]:
    probes = probes_of(rows, forms)
    every = [(probe, i) for probe in probes for i, answer in enumerate(probe.answers) if answer is not None]
    twice = [(probe, i) for probe, i in every if probe.name in _TWICE and i < _TWICE_ROWS]
    by_score: _ByScore = {}
    slots, done, total = asyncio.Semaphore(concurrency), 0, len(every) + len(twice)

    async def ask(probe: Probe, i: int) -> tuple[Key, Sequence[Score]]:
        nonlocal done
        async with slots:
            scores = await scorer.score(_rollout(rows[i], probe.answers[i] or ""), rows[i])
        done += 1
        on_progress(done, total)
        return (probe.name, i), scores

    async def ask_all(requests: Sequence[tuple[Probe, int]]) -> None:
        for key, scores in await asyncio.gather(*(ask(*request) for request in requests)):
            for score in scores:
                first, again = by_score.setdefault(score.name, ({}, {}))
                scored = Scored(score.value, score.duration_ms, score.failure.message if score.failure else None)
                if key in first:
                    again.setdefault(key, []).append(scored)
                else:
                    first[key] = scored

    try:
        await ask_all(every)
        await ask_all(twice)
        for repeat in range(max(1, math.ceil(LEAST_CALLS / max(1, len(rows))))):
            names = {name for first, _ in by_score.values() for name in suspects(probes, first)}
            if repeat and not any(changed(first, again) for first, again in by_score.values()):
                break  # the same answer has the same score each time
            requests = [(probe, i) for probe, i in every if probe.name in names]
            total += len(requests)
            await ask_all(requests)
    finally:
        await close_scorers([scorer])
    _spread_failures(by_score, scorer.name)
    return [judge(name, rows, probes, first, again, allowed=allowed) for name, (first, again) in by_score.items()]


def _spread_failures(by_score: _ByScore, main_score: str) -> None:
    if len(by_score) < 2 or main_score not in by_score:
        return
    failed, failed_again = by_score.pop(main_score)
    for first, again in by_score.values():
        first.update({key: scored for key, scored in failed.items() if key not in first})
        for key, scores in failed_again.items():
            again.setdefault(key, []).extend(scores)
        for key in [key for key in again if key not in first]:
            del again[key]


def _rollout(row: Row, answer: str) -> Rollout:
    return Rollout(
        rollout_id=f"reward-{row.index}",
        row_index=row.index,
        attempt=0,
        status=RolloutStatus.SUCCESS,
        messages=[*row.messages(), {"role": "assistant", "content": answer}],
    )
