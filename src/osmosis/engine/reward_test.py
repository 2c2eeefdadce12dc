"""Tries a score function, rubric or grader with the answers of `metrics.reward_battery`: nothing runs but the reward.

A grader is asked as it is after a rollout, with the conversation that a row opens and one answer. Refuses nothing: a
reward that raises is part of the result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from osmosis.base.plain_json import own_copy
from osmosis.errors import LoadError
from osmosis.metrics.reward_battery import ALLOWED, Battery, Probe, Scored, judge, probes_of
from osmosis.records.dataset import Row
from osmosis.records.rollout import Rollout, RolloutStatus, Score
from osmosis.records.wire import RolloutInit
from osmosis.sdk.execution import ExecutionResult
from osmosis.sdk.grader import Grader, GraderClass
from osmosis.sdk.grading import Grading
from osmosis.sdk.types import RolloutSample

from .agent import load_agent
from .ended import REWARD
from .loader import load_object
from .scoring import Scorer, close_scorers, load_scorers
from .workflow_rollout import LOCAL_URL

if TYPE_CHECKING:
    from .score_result import Range

_TWICE = ("truth", "another row's truth", "empty")
_TWICE_ROWS = 10


class GraderScorer:
    """A grader, asked about an answer that no workflow made."""

    bounds: Range | None = None

    def __init__(self, grading: Grading, *, timeout_s: float | None = None) -> None:
        self.name = REWARD
        self._grading = grading
        self._timeout_s = timeout_s

    async def score(self, rollout: Rollout, row: Row) -> Sequence[Score]:
        metadata = row.data if row.metadata is None else row.metadata
        init = RolloutInit(
            initial_messages=row.messages(),
            label=row.ground_truth,
            metadata={key: own_copy(value) for key, value in metadata.items()},
            rollout_id=rollout.rollout_id,
            chat_completions_url=LOCAL_URL,
            grader_timeout_sec=self._timeout_s,
        )
        sample = RolloutSample(messages=own_copy(rollout.messages), label=row.ground_truth)
        found = await self._grading.judge(
            init, ExecutionResult("success", sample), artifacts_dir=None, tell=lambda state: None
        )
        if found.failure is not None:
            return [Score(name=self.name, failure=found.failure)]
        return [Score(sample.reward, name=self.name)]


def load_reward(
    target: str, base_dir: Path, *, timeout_s: float | None = None, environ: Mapping[str, str] | None = None
) -> Scorer:
    """What a person names: a score function, `rubric:FILE#ID`, a grader, or an agent that brings its grader.

    Raises `LoadError` for anything that gives no reward.
    """
    if target.startswith("rubric:"):
        return load_scorers([target], base_dir, timeout_s=timeout_s, environ=environ)[0]
    found = load_object(target, base_dir) if ":" in target else None
    if isinstance(found, type) and issubclass(found, Grader):
        grader: GraderClass = found
        return GraderScorer(Grading(grader, project_path=base_dir), timeout_s=timeout_s)
    if callable(found) and not isinstance(found, type):
        return load_scorers([target], base_dir, timeout_s=timeout_s, environ=environ)[0]
    agent = load_agent(target, base_dir)
    backend = agent.backend
    if backend is None or backend.grader is None:
        raise LoadError(
            f"{target} has no grader", hint="name a score function (rewards:exact), a grader, or rubric:FILE#ID"
        )
    return GraderScorer(Grading(backend.grader, backend.grader_config, backend.project_path), timeout_s=timeout_s)


async def try_reward(
    scorer: Scorer,
    rows: Sequence[Row],
    *,
    forms: Sequence[str] = (),
    allowed: float = ALLOWED,
    concurrency: int = 1,
    told: Callable[[int, int], None] = lambda done, of: None,
) -> list[Battery]:
    """One battery for each score that the function gives; the whole answer first. `told` hears how far it is."""
    probes = probes_of(rows, forms)
    asked = [(p, i, False) for p in probes for i, answer in enumerate(p.answers) if answer is not None]
    asked += [(p, i, True) for p, i, _ in list(asked) if p.name in _TWICE and i < _TWICE_ROWS]
    found: dict[str, tuple[dict[tuple[str, int], Scored], dict[tuple[str, int], Scored]]] = {}
    slots, done = asyncio.Semaphore(concurrency), 0

    async def ask(probe: Probe, i: int, again: bool) -> list[tuple[Probe, int, bool, Score]]:
        nonlocal done
        async with slots:
            scores = await scorer.score(_rollout(rows[i], probe.answers[i] or ""), rows[i])
        done += 1
        told(done, len(asked))
        return [(probe, i, again, score) for score in scores]

    try:
        answered = await asyncio.gather(*(ask(*one) for one in asked))
    finally:
        await close_scorers([scorer])
    for probe, i, again, score in (one for scores in answered for one in scores):
        first, second = found.setdefault(score.name, ({}, {}))
        kept = Scored(score.value, score.duration_ms, score.failure.message if score.failure else None)
        (second if again else first)[probe.name, i] = kept
    _spread_failures(found, scorer.name)
    return [judge(name, rows, probes, first, second, allowed=allowed) for name, (first, second) in found.items()]


def _spread_failures(
    found: dict[str, tuple[dict[tuple[str, int], Scored], dict[tuple[str, int], Scored]]], whole: str
) -> None:
    """A function of several scores that raises has failed in each of them."""
    if len(found) < 2 or whole not in found:
        return
    failed = found.pop(whole)
    for kept in found.values():
        for mine, theirs in zip(kept, failed, strict=True):
            mine.update({key: one for key, one in theirs.items() if key not in mine})
    for first, second in found.values():
        for key in [key for key in second if key not in first]:
            del second[key]


def _rollout(row: Row, answer: str) -> Rollout:
    said = [*row.messages(), {"role": "assistant", "content": answer}]
    return Rollout(
        rollout_id=f"reward-{row.index}", row_index=row.index, attempt=0, status=RolloutStatus.SUCCESS, messages=said
    )
