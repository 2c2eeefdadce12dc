"""What a job does, by its kind: one line in `WORK` for each, and everything that surrounds it is in `runner`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from osmosis.records.report import Report
from osmosis.records.run import JobResult
from osmosis.records.run_kind import JobKind

from .evaluation import EvalRun
from .job import JobContext
from .merge_work import MergeWork
from .serving_work import ServingWork
from .training_work import TrainingWork


class JobWork(Protocol):
    """The work of one job, from its first stage to its result."""

    async def go(self) -> JobResult:
        """All stages. Raises `JobFailed` with the failure of the stage that cannot go on; cancelling cuts it off."""
        ...

    def report(self) -> Report | None:
        """The figures of what is finished, at any time: also for a run that was stopped or failed."""
        ...

    def stop(self) -> float:
        """Asks it to end soon; `go` then returns by itself. For how many seconds that is worth waiting for: 0 when
        nothing would be lost by cutting it off now."""
        ...


WORK: Mapping[JobKind, Callable[[JobContext], JobWork]] = {
    "eval": EvalRun.of,
    "training": TrainingWork.of,
    "serving": ServingWork.of,
    "merge": MergeWork.of,
}
