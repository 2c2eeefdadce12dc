import asyncio
import random
import time

from osmosis.base.net import backoff_delay
from osmosis.errors import ModelError
from osmosis.llm.failures import RETRYABLE
from osmosis.llm.model import ChatRequest, Completion, Signals
from osmosis.records.run.plan import ModelSpec, Retry
from osmosis.records.run.rollout import Category


class RetryingModel:
    def __init__(self, spec: ModelSpec, *, retry: Retry | None = None, signals: Signals | None = None) -> None:
        self.spec = spec
        self.retry = retry or Retry()
        self.signals = signals
        self._closed_until = 0.0

    async def once(self, request: ChatRequest) -> Completion:
        raise ModelError(f"{type(self).__name__} makes no calls", category=Category.UNKNOWN.value)

    def retries(self, error: ModelError) -> bool:
        return error.category in RETRYABLE

    async def close(self) -> None: ...

    def hold(self, seconds: float) -> None:
        self._closed_until = max(self._closed_until, time.monotonic() + seconds)

    async def complete(self, request: ChatRequest) -> Completion:
        retries = 0
        failures = 0
        waited = 0.0
        while True:
            now = time.monotonic()
            if self._closed_until > now:
                pause = self._closed_until - now + random.uniform(0.0, 0.25)
                waited += pause
                if request.on_wait is not None:
                    request.on_wait(pause)
                await asyncio.sleep(pause)
                continue
            try:
                completion = await self.once(request)
            except ModelError as error:
                if request.told or not self.retries(error):
                    raise
                retries += 1
                if error.category == Category.RATE_LIMIT.value:
                    # Zero is replaced by our growing delay: "Retry-After: 0" again and again would cause a retry storm.
                    delay = error.retry_after or self._delay(retries)
                    # Nobody waits longer than the budget: an endpoint that says "tomorrow" is asked once more.
                    delay = min(delay, self.retry.rate_limit_budget_s)
                    self._closed_until = max(self._closed_until, time.monotonic() + max(delay, 0.01))
                    if self.signals is not None:
                        self.signals.rate_limited(delay)
                    if waited >= self.retry.rate_limit_budget_s:
                        error.message += f" (after waiting {waited:.0f} s for rate limits)"
                        raise
                    continue
                failures += 1
                if failures >= self.retry.max_attempts:
                    error.message += f" (after {failures} attempts)"
                    raise
                await asyncio.sleep(self._delay(failures))
                continue
            completion.retries = retries
            if self.signals is not None:
                self.signals.answered(time.monotonic() - now)
            return completion

    def _delay(self, failures: int) -> float:
        return backoff_delay(failures, base_s=self.retry.base_delay_s, max_s=self.retry.max_delay_s)
