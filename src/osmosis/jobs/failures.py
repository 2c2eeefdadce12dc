"""How a job says that it cannot go on: one exception that carries the `Failure` the platform will show.

Every stage raises `JobFailed`; only the job's main turns it into a `JobResult`. A failed rollout is not one of
these: that is data, and the run goes on.
"""

from __future__ import annotations

from osmosis.errors import OsmosisError
from osmosis.records.rollout import Category, Failure, Phase

TAIL_LINES = 30


class JobFailed(OsmosisError):
    """A stage of a job failed for good; `failure` says where, why and what to do next."""

    code = "JOB_FAILED"

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message, hint=failure.fix)
        self.failure = failure


def setup_failed(
    message: str,
    *,
    fix: str | None = None,
    category: Category = Category.AGENT_ERROR,
    tail: str | None = None,
) -> JobFailed:
    """A failure before the first rollout. `tail` is the last output of whatever failed (uv, git, the server)."""
    return JobFailed(Failure(phase=Phase.SETUP, category=category, message=message, traceback=tail or None, fix=fix))
