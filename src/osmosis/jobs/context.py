from __future__ import annotations

import asyncio
import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar
from urllib.parse import urlsplit

from osmosis.base.redact import LineRedactor, Redactor
from osmosis.errors import OsmosisError
from osmosis.jobs.commands import Leftovers
from osmosis.records.run.job import Handover, HeartbeatReply, JobResult, JobSpec, LogLine, Progress, Stage
from osmosis.records.run.report import Report
from osmosis.records.run.rollout import Category, Failure, Phase

if TYPE_CHECKING:
    from osmosis.jobs.reporter import Reporter

ConfigT = TypeVar("ConfigT")
TAIL_LINES = 30


class JobFailed(OsmosisError):
    code = "JOB_FAILED"

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message, hint=failure.fix)
        self.failure = failure


def setup_failure(
    message: str, *, fix: str | None = None, category: Category = Category.AGENT_ERROR, tail: str | None = None
) -> JobFailed:
    """Return the failure of a stage before the first rollout. `tail` is the last output of what failed."""
    return JobFailed(Failure(phase=Phase.SETUP, category=category, message=message, traceback=tail or None, fix=fix))


def get_secret(secrets: Mapping[str, str], key: str, name: str) -> str:
    if name not in secrets:
        message = f"[advanced].{key} names {name}, which is not a secret of the run"
        fix = f"add it to [secrets].required and store its value: `osmosis secret set {name}`"
        raise setup_failure(message, fix=fix, category=Category.AUTH)
    return secrets[name]


Level = Literal["debug", "info", "warning", "error"]
MAX_LINE = 8000
LINE_BYTES = 64
HELD_S = 1.0


class JobLog:
    def __init__(self, redactor: Redactor | None = None, *sinks: Callable[[LogLine], None]) -> None:
        self._redactor = redactor or Redactor()
        self.sinks = list(sinks)
        self._streams: list[tuple[LineRedactor, Callable[[str], None]]] = []
        self.stream_bytes: float = math.inf

    def write(self, step: str, message: str, level: Level = "info") -> None:
        """Write one line. It is cut after redaction, so that a cut never leaves half a secret."""
        self._put(step, self._redactor.text(message.rstrip("\n")), level)

    def _put(self, step: str, text: str, level: Level) -> None:
        text = text.rstrip("\r").rpartition("\r")[2]  # of a progress bar, what a terminal would show
        if len(text) > MAX_LINE:
            text = f"{text[:MAX_LINE]} ... ({len(text) - MAX_LINE} more characters)"
        line = LogLine(level=level, step=step, message=text)
        for sink in self.sinks:
            sink(line)

    def stream(self, step: str, level: Level = "info") -> Callable[[str], None]:
        redactor = LineRedactor(self._redactor)

        def put(line: str) -> None:
            if self.stream_bytes <= 0:
                return
            self.stream_bytes -= min(len(line.encode("utf-8", "replace")), MAX_LINE) + LINE_BYTES
            self._put(step, line, level)
            if self.stream_bytes <= 0:
                self._put(step, "the job's processes have printed more than output_mb: the rest is dropped", "warning")

        def hear(line: str) -> None:
            for text in redactor.lines(line.rstrip("\n")):
                put(text)
            if redactor.holds:
                with contextlib.suppress(RuntimeError):  # no event loop: then `close` writes it
                    asyncio.get_running_loop().call_later(HELD_S, flush)

        def flush() -> None:
            for text in redactor.rest():
                put(text)

        self._streams.append((redactor, put))
        return hear

    def close(self) -> None:
        for redactor, put in self._streams:
            for text in redactor.rest():
                put(text)


@dataclass(slots=True)
class JobContext:
    """One job. `environ` is the machine's and holds nothing of the run: no secret, no `[env]`."""

    spec: JobSpec
    environ: Mapping[str, str]
    secrets: Mapping[str, str]
    log: JobLog
    reporter: Reporter
    redactor: Redactor
    leftovers: Leftovers
    handover: Handover = field(default_factory=lambda: Handover(token="-"), repr=False)
    progress: Progress = field(default_factory=lambda: Progress(stage=Stage.CHECKOUT))
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    before_heartbeat: Callable[[], None] = lambda: None  # Brings `progress` up to date
    on_reply: Callable[[HeartbeatReply], None] | None = None
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    holding: bool = False

    @property
    def work_dir(self) -> Path:
        return Path(self.spec.work_dir)

    @property
    def cache_dir(self) -> Path:
        return Path(self.spec.cache_dir)

    def config_of(self, kind: type[ConfigT], problem: str) -> ConfigT:
        if not isinstance(self.spec.config, kind):
            raise setup_failure(problem, category=Category.UNKNOWN)
        return self.spec.config

    async def wait_for_room(self) -> None:
        """Wait while more is queued than the platform or memory can take; the journal already has it."""
        if self.reporter.full and not self.holding:
            self.holding = True
            message = "the platform accepts nothing at the moment: no more is started until it does"
            self.log.write(self.progress.stage.value, message, "warning")
        await self.reporter.wait_for_room(self.stop)
        self.holding = self.holding and self.reporter.full

    def enter(self, stage: Stage, message: str) -> None:
        self.progress.stage = stage
        self.changed.set()
        self.log.write(stage.value, message)

    def advance(self, completed: int, total: int, report: Report | None = None) -> None:
        self.progress.completed = completed
        self.progress.total = total
        if report is not None:
            self.progress.report = report
        self.changed.set()


class Job(ABC):
    @abstractmethod
    async def run(self) -> JobResult:
        """Run all stages. Raise `JobFailed` when a stage cannot go on; cancelling cuts it off."""

    def report(self) -> Report | None:
        """Return the figures so far, also of a stopped or failed run."""
        return None

    def stop(self) -> float:
        """Ask it to end soon; return how many seconds to wait for that (0: cutting it off loses nothing)."""
        return 0.0


def secret_values(spec: JobSpec, handover: Handover) -> Iterable[str]:
    yield handover.token
    yield from handover.secrets.values()
    if password := urlsplit(spec.repository).password:
        yield password
