"""What ends a run early: a budget that is used up, failures that keep repeating, a person, a time limit.

Ending means that nothing new starts. What is in flight finishes, and the journal owes the rest to a resume.
"""

from __future__ import annotations

from osmosis.records.plan import Budget, EvalPlan
from osmosis.records.rollout import Category, Rollout, RolloutStatus
from osmosis.records.shard import Spend

_HOPELESS = {Category.AUTH.value, Category.MODEL_NOT_FOUND.value, Category.SERVER_DIED.value}
_HOPELESS_AFTER = 3


class Breaker:
    """Opens after so many equal infrastructure failures in a row without a success between."""

    def __init__(self, after: int) -> None:
        self.after = after
        self._last: tuple[str, str] | None = None
        self._count = 0

    def saw(self, rollout: Rollout) -> str | None:
        """Why the run should end, when it should."""
        failure = rollout.failure
        if failure is None or rollout.status is not RolloutStatus.FAILED:
            self._last, self._count = None, 0
            return None
        if not failure.category.is_infrastructure:
            return None
        category = failure.category.value
        kind = (failure.phase.value, category)
        self._count = self._count + 1 if kind == self._last else 1
        self._last = kind
        limit = min(self.after, _HOPELESS_AFTER) if category in _HOPELESS else self.after
        if self._count < limit:
            return None
        return f"{self._count} rollouts in a row failed with {category}: {failure.message[:300]}"


class Spending:
    """Tokens and money spent, against the plan's budget."""

    def __init__(self, plan: EvalPlan) -> None:
        self.budget = plan.budget
        self._unlimited = plan.budget == Budget()
        self.tokens = 0
        self.cost = 0.0
        self.elsewhere = Spend.made()
        """By other jobs of the same run, as far as is known here."""

    def add(self, tokens: int, cost: float | None) -> None:
        self.tokens += tokens
        self.cost += cost or 0.0

    def saw(self, rollout: Rollout) -> None:
        usage = rollout.usage
        self.add(usage.total_tokens, usage.cost_usd)
        for score in rollout.scores.values():
            usage_of_judge = score.usage
            if usage_of_judge is not None:
                self.add(usage_of_judge.total_tokens, usage_of_judge.cost_usd)

    def exceeded(self) -> str | None:
        """Which limit is reached, when one is."""
        if self._unlimited:
            return None
        elsewhere = self.elsewhere
        return self.budget.used_up(self.cost + elsewhere.cost_usd, self.tokens + elsewhere.tokens)
