import asyncio
import time
from collections import deque
from dataclasses import dataclass

from osmosis.records.run.plan import Budget, EvalPlan
from osmosis.records.run.rollout import Category, Rollout, RolloutStatus
from osmosis.records.run.rows import Spend

_HOPELESS = {Category.AUTH.value, Category.MODEL_NOT_FOUND.value, Category.SERVER_DIED.value}
_HOPELESS_AFTER = 3


@dataclass(slots=True)
class Breaker:
    """Opens after so many equal infrastructure failures in a row without a success between."""

    after: int
    _last: tuple[str, str] | None = None
    _count: int = 0

    def check(self, rollout: Rollout) -> str | None:
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
    def __init__(self, plan: EvalPlan) -> None:
        self.budget = plan.budget
        self._unlimited = plan.budget == Budget()
        self.tokens = 0
        self.cost = 0.0
        self.elsewhere = Spend()

    def add(self, tokens: int, cost: float | None) -> None:
        self.tokens += tokens
        self.cost += cost or 0.0

    def add_rollout(self, rollout: Rollout) -> None:
        for usage in (rollout.usage, rollout.user_usage, *(score.usage for score in rollout.scores.values())):
            if usage is not None:
                self.add(usage.total_tokens, usage.cost_usd)

    def exceeded(self) -> str | None:
        if self._unlimited:
            return None
        elsewhere = self.elsewhere
        return self.budget.used_up(self.cost + elsewhere.cost_usd, self.tokens + elsewhere.tokens)


START = 8
LAG_LIMIT_S = 0.1
_COOLDOWN_S = 2.0
_SLOW_FACTOR = 3.0
_WINDOW = 50


class Limiter:
    """Slots for rollouts. `answered` and `rate_limited` make it a `llm.Signals`; a fixed limit ignores both."""

    def __init__(self, ceiling: int, *, adaptive: bool = False) -> None:
        self.ceiling = ceiling
        self.adaptive = adaptive
        self.limit = float(min(START, ceiling) if adaptive else ceiling)
        self.active = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._quiet_until = 0.0
        self._latency = 0.0
        self._best = 0.0
        self._seen = 0

    def resize(self, ceiling: int) -> None:
        grown = self.ceiling == int(self.limit) or not self.adaptive
        self.ceiling = ceiling
        self.limit = float(ceiling) if grown else min(self.limit, float(ceiling))
        self._admit()

    def take(self) -> bool:
        if self.active >= int(self.limit):
            return False
        self.active += 1
        return True

    async def acquire(self) -> None:
        if self.take():
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.release()
            raise

    def release(self) -> None:
        self.active -= 1
        if self._waiting:
            self._admit()

    def _admit(self) -> None:
        while self._waiting and self.active < int(self.limit):
            waiter = self._waiting.popleft()
            if not waiter.done():
                self.active += 1
                waiter.set_result(None)

    def answered(self, seconds: float) -> None:
        if not self.adaptive:
            return
        self._seen += 1
        self._latency = seconds if not self._latency else 0.9 * self._latency + 0.1 * seconds
        if self._seen >= _WINDOW and (not self._best or self._latency < self._best):
            self._best = self._latency
        slow = bool(self._best) and self._latency > _SLOW_FACTOR * self._best + 0.05
        if not slow and time.monotonic() >= self._quiet_until and self.active >= int(self.limit) - 1:
            self.limit = min(float(self.ceiling), self.limit + 1.0 / max(1.0, self.limit / 4))
            self._admit()

    def rate_limited(self, seconds: float) -> None:
        self._shrink(0.5, max(_COOLDOWN_S, seconds))

    def lagging(self, seconds: float) -> None:
        if seconds > LAG_LIMIT_S:
            self._shrink(0.9, _COOLDOWN_S)

    def _shrink(self, factor: float, quiet_s: float) -> None:
        now = time.monotonic()
        if not self.adaptive or now < self._quiet_until:
            return
        self.limit = max(1.0, self.limit * factor)
        self._quiet_until = now + quiet_s
