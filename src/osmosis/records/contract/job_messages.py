"""What a job and the platform say to each other beyond the records of `records.run`."""

from __future__ import annotations

from osmosis.records.keys import Key
from osmosis.records.run import CheckpointReport, LogLine, MetricPoint

from .body import Body, Request


class JobLogs(Request):
    lines: list[LogLine]


class JobMetrics(Request):
    points: list[MetricPoint]


class JobCheckpoints(Request):
    checkpoints: list[CheckpointReport]


class StoredKeys(Body):
    """The rollouts a platform has of a run."""

    keys: list[Key]
    """`[step, row_key, attempt]` each."""


class StoredCount(Body):
    stored: int
    """How many were new."""


class JobEnd(Body):
    status: str
    """The run's status after the job's last message."""
