"""What a job does first, whatever it is told to do: done by a process that stands by, while nobody waits for it.

Reads nothing of a job, and fails at nothing: what cannot be done now is said by the job that needs it.
"""

from __future__ import annotations

from osmosis.records.base import Record
from osmosis.records.config import Checkpoints, Sampling, Training
from osmosis.records.plan import Budget, EvalPlan, ModelSpec, Retry, RolloutLimits, Selection, Timeouts
from osmosis.records.report import Report
from osmosis.records.rollout import ModelCall, Rollout, Score, Usage
from osmosis.records.run import Handover, HeartbeatReply, JobEntry, JobResult, JobSpec, LogLine, Progress
from osmosis.records.sandbox import SandboxChoice
from osmosis.records.wire import RolloutAccepted, RolloutInit, RolloutState04, ServerHealth
from osmosis.sandbox import probe

RECORDS: tuple[type[Record], ...] = (
    *(JobEntry, JobSpec, Handover, Progress, LogLine, HeartbeatReply, JobResult),
    *(Training, Sampling, Checkpoints),
    *(EvalPlan, Selection, ModelSpec, Retry, Timeouts, Budget, RolloutLimits, SandboxChoice),
    *(ServerHealth, RolloutInit, RolloutAccepted, RolloutState04),
    *(Usage, ModelCall, Score, Rollout, Report),
)
"""Those of every evaluation. They are built at their first use, and at that moment somebody waits."""


def stand_by() -> None:
    """Finds out what sandbox works here, builds the schemas of records."""
    probe()
    for kind in RECORDS:
        kind.model_rebuild()
