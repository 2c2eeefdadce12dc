"""The report of a run that came without one: counts, means and pass@k over its rollouts, no intervals.

Runs of this project bring the report their engine made, which says more; this is for those of other clients.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict

from osmosis.records.report import FailureCount, PassAtK, Report, ScoreReport
from osmosis.records.rollout import Category, Phase, Rollout, RolloutStatus, Usage

from .rollouts import reward_of

EXAMPLES = 5


class Tally:
    """Adds rollouts up, one at a time."""

    def __init__(self, *, attempts: int, pass_threshold: float) -> None:
        self.attempts = attempts
        self.pass_threshold = pass_threshold
        self.usage = Usage()
        self.statuses = dict.fromkeys(RolloutStatus, 0)
        self.rewards: list[float] = []
        self.passes: dict[int, list[bool]] = defaultdict(list)
        """By row: whether each attempt that was not skipped passed."""
        self.rows: set[int] = set()
        self.failures: dict[tuple[Phase, Category], FailureCount] = {}
        self.duration_ms = 0.0

    @property
    def count(self) -> int:
        return sum(self.statuses.values())

    def add(self, rollout: Rollout) -> None:
        self.statuses[rollout.status] += 1
        self.usage = self.usage + rollout.usage
        self.rows.add(rollout.row_index)
        self.duration_ms += rollout.duration_ms
        if rollout.status is RolloutStatus.SKIPPED:
            return
        reward = reward_of(rollout)
        if reward is not None:
            self.rewards.append(reward)
        self.passes[rollout.row_index].append(reward is not None and reward >= self.pass_threshold)
        if rollout.failure is not None:
            key = (rollout.failure.phase, rollout.failure.category)
            seen = self.failures.setdefault(
                key, FailureCount(phase=key[0], category=key[1], count=0, example=rollout.failure.message)
            )
            seen.count += 1
            if len(seen.rows) < EXAMPLES:
                seen.rows.append(rollout.row_index)

    def report(self, *, rows: int) -> Report:
        """Over everything added; `rows` were selected."""
        total = max(rows * self.attempts, self.count)
        return Report(
            rows=rows,
            attempts=self.attempts,
            pass_threshold=self.pass_threshold,
            total=total,
            completed=self.count,
            succeeded=self.statuses[RolloutStatus.SUCCESS],
            failed=self.statuses[RolloutStatus.FAILED],
            skipped=self.statuses[RolloutStatus.SKIPPED],
            coverage=len(self.rewards) / total if total else 0.0,
            scores=[self._score()],
            failures=sorted(self.failures.values(), key=lambda found: -found.count),
            usage=self.usage,
            duration_ms=self.duration_ms,
        )

    def _score(self) -> ScoreReport:
        graded = sum(len(passes) for passes in self.passes.values())
        passed = sum(sum(passes) for passes in self.passes.values())
        values = self.rewards + [0.0] * (graded - len(self.rewards))
        return ScoreReport(
            name="reward",
            mean=statistics.fmean(values) if values else None,
            mean_scored=statistics.fmean(self.rewards) if self.rewards else None,
            std=statistics.pstdev(values) if values else None,
            min=min(values, default=None),
            max=max(values, default=None),
            median=statistics.median(values) if values else None,
            passed=passed,
            scored=len(self.rewards),
            failed=graded - len(self.rewards),
            pass_rate=passed / graded if graded else None,
            pass_at_k=self._pass_at_k(),
        )

    def _pass_at_k(self) -> list[PassAtK]:
        if self.attempts < 2:
            return []
        found = []
        k = 1
        while k <= self.attempts:
            values = [_estimate(len(p), sum(p), k) for p in self.passes.values() if len(p) >= k]
            if values:
                found.append(PassAtK(k=k, value=statistics.fmean(values), rows=len(values)))
            k *= 2
        return found


def _estimate(n: int, c: int, k: int) -> float:
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)
