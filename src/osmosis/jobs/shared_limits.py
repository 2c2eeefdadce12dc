"""What an evaluation job shares with others: its run's concurrency and budget, the rate limits of its endpoint.

Heartbeats carry it both ways: the job says what it has spent and for how long its endpoint wants no calls, the platform
answers with what the others said. Nothing is negotiated: between two heartbeats a job goes by what it knew.
"""

from __future__ import annotations

import time

from osmosis.engine.guards import Spending
from osmosis.engine.limiter import Limiter
from osmosis.llm import Model
from osmosis.llm.retry import RetryingModel
from osmosis.records.plan import EvalPlan
from osmosis.records.run import HeartbeatReply

from .job import JobContext

WORTH_SAYING_S = 0.5
"""A shorter pause is over before another job hears of it."""


class SharedLimits:
    """Of one job. It is the `Signals` of the job's model, and hears every answer to a heartbeat."""

    def __init__(self, context: JobContext, plan: EvalPlan) -> None:
        self._context = context
        self.limiter = Limiter(context.spec.shard.concurrency or plan.concurrency, adaptive=plan.adaptive)
        self.spending = Spending(plan)
        self._model: Model | None = None
        self._refused_until = 0.0
        context.on_reply = self.heard

    def asks(self, model: Model) -> None:
        """The model of the job, whose calls wait when the endpoint has refused those of another."""
        self._model = model

    def answered(self, seconds: float) -> None:
        self.limiter.answered(seconds)

    def rate_limited(self, seconds: float) -> None:
        """The endpoint refused a call of this job: the others hear of it with the next heartbeat, which comes soon."""
        self.limiter.rate_limited(seconds)
        self._refused_until = max(self._refused_until, time.monotonic() + seconds)
        self._say()
        self._context.changed.set()

    def heard(self, reply: HeartbeatReply) -> None:
        """What the platform answered."""
        if reply.concurrency:
            self.limiter.resize(reply.concurrency)
        if reply.elsewhere is not None:
            self.spending.elsewhere = reply.elsewhere
        if reply.pause_s > 0 and isinstance(self._model, RetryingModel):
            self._model.hold(reply.pause_s)
        self._say()

    def _say(self) -> None:
        """Only of refusals met here: what another job met is not repeated, or it would never end."""
        left = self._refused_until - time.monotonic()
        self._context.progress.pause_s = round(left, 2) if left >= WORTH_SAYING_S else 0.0
