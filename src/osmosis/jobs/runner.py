import asyncio
import contextlib
import enum
import math
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from osmosis.base.files import find_full_disk
from osmosis.base.processes import end_tasks, wait_for_first
from osmosis.base.redact import Redactor
from osmosis.errors import LeaseLost, OsmosisError
from osmosis.jobs.commands import Leftovers
from osmosis.jobs.context import TAIL_LINES, Job, JobContext, JobFailed, JobLog, secret_values, setup_failure
from osmosis.jobs.kinds.evaluation import open_job
from osmosis.jobs.kinds.model import MergeJob, ServingJob
from osmosis.jobs.kinds.training import TrainingJob
from osmosis.jobs.reporter import Reporter
from osmosis.records.run.job import Handover, JobResult, JobSpec, LogLine, Stage
from osmosis.records.run.rollout import Category, Failure, Phase
from osmosis.records.run.status import JobKind, RunStatus

HEARTBEAT_S = 5.0
HEARTBEAT_AT_MOST_EVERY_S = 1.0
TERM_GRACE_S = 8.0


WORK: Mapping[JobKind, Callable[[JobContext], Job]] = {
    "eval": open_job,
    "training": TrainingJob.from_context,
    "serving": ServingJob.from_context,
    "merge": MergeJob.from_context,
}


class Exit(enum.IntEnum):
    """Exit codes of a job process, for the executor's log; the platform goes by the last message."""

    REPORTED = 0
    UNREPORTED = 1  # The platform was not told: it will start the run again
    LEASE_LOST = 3


class JobRunner:
    def __init__(
        self,
        spec: JobSpec,
        handover: Handover,
        environ: Mapping[str, str],
        *,
        echo: Callable[[LogLine], None] | None = None,
        ca_file: str = "",
        kinds: Mapping[JobKind, Callable[[JobContext], Job]] = WORK,
    ) -> None:
        self.spec = spec
        self._kinds = kinds
        redactor = Redactor(secret_values(spec, handover))
        log = JobLog(redactor, *([echo] if echo else []))
        log.stream_bytes = spec.sandbox.output_mb * 1024 * 1024
        self._reporter = Reporter(spec.platform_url, spec.run_id, handover.token, redactor=redactor, ca_file=ca_file)
        path = Path(spec.work_dir)
        path.mkdir(parents=True, exist_ok=True)
        self.context = JobContext(
            spec=spec,
            environ=environ,
            secrets=handover.secrets,
            log=log,
            reporter=self._reporter,
            redactor=redactor,
            leftovers=Leftovers(path),
            handover=handover,
        )
        self._grace_s = math.inf
        self._run: Job | None = None

    def stop(self, grace_s: float = TERM_GRACE_S) -> None:
        """Let work in flight finish for at most `grace_s` seconds, then cut it off; a second call may shorten that."""
        self._grace_s = min(self._grace_s, grace_s)
        self.context.stop.set()

    async def run(self) -> Exit:
        async with self._reporter as reporter:
            self.context.log.sinks.append(reporter.log)
            if ended := self.context.leftovers.end_all():
                self.context.log.write("job", f"ended {ended} processes left over from an earlier attempt", "warning")
            beats = asyncio.create_task(self._send_heartbeats())
            work = asyncio.create_task(self._work())
            try:
                result = await self._first(work, beats, reporter.ended)
                if result is None:
                    return Exit.LEASE_LOST
                self.context.log.close()
                self.context.enter(Stage.REPORT, f"reporting: {result.status.value}")
                await reporter.finish(result)
            except LeaseLost:
                return Exit.LEASE_LOST
            except OsmosisError:
                return Exit.UNREPORTED
            finally:
                await end_tasks(beats, work)
        return Exit.REPORTED

    async def _first(
        self, work: asyncio.Task[JobResult], beats: asyncio.Task[None], ended: asyncio.Future[OsmosisError] | None
    ) -> JobResult | None:
        assert ended is not None
        await wait_for_first(work, beats, ended)
        if work.done():
            return work.result()
        await end_tasks(work)
        if not ended.done():
            problem = beats.exception()
            return self._failed(_crash(problem if isinstance(problem, Exception) else RuntimeError("no heartbeat")))
        problem = ended.result()
        if isinstance(problem, LeaseLost):
            return None
        message = f"the platform rejected the job's report: {problem.message}"
        return self._failed(setup_failure(message, fix=problem.hint, category=Category.UNKNOWN).failure)

    async def _work(self) -> JobResult:
        try:
            make = self._kinds.get(self.spec.kind)
            if make is None:
                raise setup_failure(f"this machine runs no jobs of kind {self.spec.kind}", category=Category.UNKNOWN)
            self._run = make(self.context)
            return await self._until_stopped(self._run)
        except JobFailed as problem:
            return self._failed(problem.failure)
        except OsmosisError as problem:
            message = problem.message
            return self._failed(setup_failure(message, fix=problem.hint, category=Category.UNKNOWN).failure)
        except Exception as problem:  # noqa: BLE001 - border of the job: whatever it is, the person is told
            return self._failed(_crash(problem))

    async def _until_stopped(self, run: Job) -> JobResult:
        going = asyncio.create_task(run.run())
        stopping = asyncio.create_task(self.context.stop.wait())
        either: set[asyncio.Future[Any]] = {going, stopping}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not going.done():
                self.context.log.write("job", "asked to stop", "warning")
                patience_s, waited = run.stop(), 0.0
                while not going.done() and waited < min(patience_s, self._grace_s):
                    await asyncio.wait({going}, timeout=0.5)
                    waited += 0.5
                if not going.done():
                    await end_tasks(going)
            if going.cancelled():
                return JobResult(status=RunStatus.STOPPED, report=run.report())
            return going.result()
        finally:
            await end_tasks(going, stopping)

    def _failed(self, failure: Failure) -> JobResult:
        report = None
        if self._run is not None:
            with contextlib.suppress(OsmosisError, OSError):
                report = self._run.report()
        return JobResult(status=RunStatus.FAILED, report=report, failure=failure)

    async def _send_heartbeats(self) -> None:
        while True:
            self.context.changed.clear()
            self.context.before_heartbeat()
            reply = await self._reporter.heartbeat(self.context.progress)
            if reply is not None and reply.stop:
                self.stop(math.inf)
            if reply is not None and self.context.on_reply is not None:
                self.context.on_reply(reply)
            silent_s = max(HEARTBEAT_AT_MOST_EVERY_S, self._reporter.every_s)
            await asyncio.sleep(silent_s)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.context.changed.wait(), HEARTBEAT_S - silent_s)


def _crash(problem: Exception) -> Failure:
    if full := find_full_disk(problem, where="the machine that runs this job"):
        return Failure(phase=Phase.SETUP, category=Category.UNKNOWN, message=full.message, fix=full.hint)
    lines = traceback.format_exception(type(problem), problem, problem.__traceback__)
    return Failure(
        phase=Phase.SETUP,
        category=Category.UNKNOWN,
        message=f"the job crashed: {type(problem).__name__}: {problem}",
        traceback="\n".join("".join(lines).splitlines()[-TAIL_LINES:]),
        fix="this is a bug in osmosis: report it with the run's log",
    )
