"""What every stage of a job shares: the spec, where to write, how far it is, and whether it should stop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from osmosis.base.redact import Redactor
from osmosis.records.report import Report
from osmosis.records.run import JobSpec, Progress, Stage

from .leftovers import Leftovers
from .log import JobLog
from .reporter import Reporter


@dataclass(slots=True)
class JobContext:
    """One job. `environ` is the job's own environment: `[env]` and secrets included."""

    spec: JobSpec
    environ: Mapping[str, str]
    log: JobLog
    reporter: Reporter
    redactor: Redactor
    leftovers: Leftovers
    progress: Progress = field(default_factory=lambda: Progress(stage=Stage.CHECKOUT))
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the progress says something new."""
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the person, or the platform, wants the job to end: what is in flight finishes."""

    @property
    def work_dir(self) -> Path:
        return Path(self.spec.work_dir)

    @property
    def cache_dir(self) -> Path:
        return Path(self.spec.cache_dir)

    def enter(self, stage: Stage, message: str) -> None:
        """Says which stage begins."""
        self.progress.stage = stage
        self.changed.set()
        self.log.write(stage.value, message)

    def advance(self, completed: int, total: int, report: Report | None = None) -> None:
        """Says how far the rollouts are."""
        self.progress.completed = completed
        self.progress.total = total
        if report is not None:
            self.progress.report = report
        self.changed.set()


def secret_values(spec: JobSpec, environ: Mapping[str, str], token: str) -> Iterable[str]:
    """Every value that must not be written anywhere."""
    yield token
    for name in spec.secret_names:
        if name in environ:
            yield environ[name]
    if spec.config.advanced.api_key_env:
        yield environ.get(spec.config.advanced.api_key_env, "")
    if password := urlsplit(spec.repository).password:
        yield password
