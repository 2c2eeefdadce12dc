"""What no plan can say: flags that would have no effect beside each other, and limits that limit nothing.

Refuses only; what a good value means is `plan`'s.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ...errors import UsageError, ValidationError

if TYPE_CHECKING:
    from .plan import LocalFlags


def check_together(flags: LocalFlags) -> None:
    """Flags that would have no effect beside each other are refused: nothing is dropped silently."""
    beside = [f"--{name}" for name in ("limit", "sample") if getattr(flags, name) is not None]
    beside += ["--offset"] if flags.offset else []
    if flags.rows is not None and beside:
        raise UsageError(f"--rows and {beside[0]} exclude each other", hint="--rows 3,7,10-20 names every row")
    if flags.replay is not None:
        for name in ("model", "base_url", "api_key_env", "cache"):
            if getattr(flags, name):
                raise UsageError(f"--replay answers from a journal: --{name.replace('_', '-')} would not be used")
    if flags.server_key_env is not None and not flags.server:
        raise UsageError("--server-key-env goes with --server")
    if flags.grader is not None and not flags.module:
        raise UsageError("--grader goes with -m: MCP tools and rollout servers have no grader here", hint="--eval-fn")
    if flags.price is not None and flags.replay is not None:
        raise UsageError("--replay costs nothing: --price would not be used")


def check_limits(
    *,
    max_cost: float | None = None,
    max_tokens_total: int | None = None,
    run_timeout: float | None = None,
    fail_under: float | None = None,
    pass_threshold: float | None = None,
) -> None:
    """Refuses limits that say nothing or end a run before it begins."""
    if run_timeout is not None and not 0 < run_timeout < math.inf:
        raise ValidationError(f"--run-timeout must be above 0, got {run_timeout:g}")
    if pass_threshold is not None and not math.isfinite(pass_threshold):
        raise ValidationError(f"--pass-threshold must be a finite number, got {pass_threshold}")
    if max_cost is not None and not 0 < max_cost < math.inf:
        raise ValidationError(f"--max-cost must be above 0, got {max_cost:g}")
    if max_tokens_total is not None and max_tokens_total < 1:
        raise ValidationError(f"--max-tokens-total must be at least 1, got {max_tokens_total}")
    if fail_under is not None and not math.isfinite(fail_under):
        raise ValidationError(f"--fail-under must be a finite number, got {fail_under}")


def check_classes(classes: list[str]) -> None:
    """Refuses words that are no failure class."""
    from ...records.rollout import Category, Phase

    known = [c.value for c in Category] + [p.value for p in Phase] + ["skipped"]
    wrong = [c for c in classes if c not in known]
    if wrong:
        raise UsageError(f"{wrong[0]!r} is no failure class", hint=f"one of: {', '.join(known)}")
