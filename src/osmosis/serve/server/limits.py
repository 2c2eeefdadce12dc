"""The bounds of a rollout server. Nothing waits for ever and nothing grows without limit; the numbers are here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ServeLimits:
    """Seconds and counts that bound a rollout server."""

    max_queue: int = 10_000
    """Rollouts that may wait for a slot; one more is answered 429."""
    rollout_timeout_s: float = 3600.0
    """Limit of one rollout whose request names no limits of its own."""
    timeout_grace_s: float = 15.0
    """What a backend gets beyond the request's own limits before the rollout is ended from outside."""
    abandon_after_s: float = 5.0
    """A rollout whose code goes on after its end gives its slot away after this long."""
    result_wait_s: float = 30.0
    """How long one read of a result may wait for a change (generation 0.4)."""
    lease_s: float = 120.0
    """A polled rollout that nobody reads for this long is cancelled (generation 0.4)."""
    keep_s: float = 900.0
    """How long a finished rollout's result can be read again."""
    drain_s: float = 30.0
    """On shutdown: how long running rollouts may go on before they are ended with an error result."""
    delivery_drain_s: float = 10.0
    """On shutdown: how long undelivered results are still tried before they are spooled to disk."""
    max_body_bytes: int = 64 * 1024 * 1024
    """Largest accepted request body."""
