"""A job as all its stages see it: the spec, how far it is, whether it should stop, where to write, and how to say that
it cannot go on. Every stage raises `JobFailed`, and only `runner` makes a result of it; a failed rollout is
none of these: that is data, and the run continues. Each line of the log is redacted here, once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol
from urllib.parse import urlsplit

from osmosis.base.redact import LineRedactor, Redactor
from osmosis.errors import OsmosisError
from osmosis.records.report import Report
from osmosis.records.rollout import Category, Failure, Phase
from osmosis.records.run import Handover, HeartbeatReply, JobSpec, LogLine, Progress, Stage
from osmosis.sandbox import Box, Policy

from .commands import Leftovers

if TYPE_CHECKING:
    from .reporter import Reporter

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


Level = Literal["debug", "info", "warning", "error"]
MAX_LINE = 8000
HELD_S = 1.0


class JobLog:
    """Where stages write. `redactor` takes secret values out; `sinks` receive each finished line."""

    def __init__(self, redactor: Redactor | None = None, *sinks: Callable[[LogLine], None]) -> None:
        self._redactor = redactor or Redactor()
        self._sinks = list(sinks)
        self._streams: list[tuple[LineRedactor, Callable[[str], None]]] = []

    def add_sink(self, sink: Callable[[LogLine], None]) -> None:
        self._sinks.append(sink)

    def write(self, step: str, message: str, level: Level = "info") -> None:
        """One line. Very long lines are cut, after redaction, so a cut never uncovers half a secret."""
        self._put(step, self._redactor.text(message.rstrip("\n")), level)

    def _put(self, step: str, text: str, level: Level) -> None:
        if len(text) > MAX_LINE:
            text = f"{text[:MAX_LINE]} ... ({len(text) - MAX_LINE} more characters)"
        line = LogLine(level=level, step=step, message=text)
        for sink in self._sinks:
            sink(line)

    def stream(self, step: str, level: Level = "info") -> Callable[[str], None]:
        """A callback that writes each line it is given under `step`. One that ends as a secret begins is written with
        the next one, or a moment later (`HELD_S`)."""
        redactor = LineRedactor(self._redactor)

        def put(line: str) -> None:
            self._put(step, line, level)

        def hear(line: str) -> None:
            for one in redactor.lines(line.rstrip("\n")):
                put(one)
            if redactor.holds:
                with contextlib.suppress(RuntimeError):  # no event loop: then `close` writes it
                    asyncio.get_running_loop().call_later(HELD_S, flush)

        def flush() -> None:
            for one in redactor.rest():
                put(one)

        self._streams.append((redactor, put))
        return hear

    def close(self) -> None:
        """Writes what is held back."""
        for redactor, put in self._streams:
            for one in redactor.rest():
                put(one)


class ServerAtHand(Protocol):
    """A process that becomes the rollout server of the job, if it is the one that the job needs (`ready_server`)."""

    async def take(self, work_dir: Path) -> None:
        """It gets the folders of the job: before anything is in them."""

    async def begin(self, argv: Sequence[str], policy: Policy) -> Box | None:
        """The sandbox in which it becomes `argv`; None when it is none that the job needs."""

    async def close(self) -> None:
        """Ends it, unless it has become a server."""


@dataclass(slots=True)
class JobContext:
    """One job. `environ` is the machine's, in which nothing is of the run: no secret, nothing of `[env]`."""

    spec: JobSpec
    environ: Mapping[str, str]
    secrets: Mapping[str, str]
    """Name -> value. The rollout gets them as variables; here a model's key is an argument of its calls."""
    log: JobLog
    reporter: Reporter
    redactor: Redactor
    leftovers: Leftovers
    handover: Handover = field(default_factory=lambda: Handover(token="-"), repr=False)
    """The lease, for what a job shows to others than the reporter."""
    progress: Progress = field(default_factory=lambda: Progress(stage=Stage.CHECKOUT))
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the progress says something new."""
    on_reply: Callable[[HeartbeatReply], None] | None = None
    """Who wants to know what the platform says to heartbeats: what this job shares with others."""
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the person, or the platform, wants the job to end: what is in flight finishes."""
    server_at_hand: ServerAtHand | None = None
    holding: bool = False
    """Whether it was said that the platform takes nothing."""

    @property
    def work_dir(self) -> Path:
        return Path(self.spec.work_dir)

    @property
    def cache_dir(self) -> Path:
        return Path(self.spec.cache_dir)

    async def room(self) -> None:
        """Waits while there is more than the platform, or else our memory, can take; it is on the disk already."""
        if self.reporter.full and not self.holding:
            self.holding = True
            self.log.write(
                self.progress.stage.value,
                "the platform accepts nothing at the moment: no more is started until it does",
                "warning",
            )
        await self.reporter.room(self.stop)
        self.holding = self.holding and self.reporter.full

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


def secret_values(spec: JobSpec, handover: Handover) -> Iterable[str]:
    """Every value that must not be written anywhere."""
    yield handover.token
    yield from handover.secrets.values()
    if password := urlsplit(spec.repository).password:
        yield password
