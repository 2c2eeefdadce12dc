"""The platform's own worker, and what looks after runs that no worker speaks for.

The worker is `osmosis.worker`, with a desk in this process: it shares the platform's disk, so its jobs read
repositories and datasets where they are.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time

from osmosis.records.contract.worker_bodies import (
    JobStarted,
    WorkerHello,
    WorkerLeaves,
    WorkerOrders,
    WorkerRound,
    WorkerWelcome,
)
from osmosis.worker.executors.executor import Executor
from osmosis.worker.executors.local import LocalExecutor
from osmosis.worker.loop import Worker, WorkerPlan

from . import Platform
from .hearing import Hearing
from .services import caretaker, fleet
from .settings import local_job_command

log = logging.getLogger(__name__)


class OwnDesk:
    """Asks the platform that it is part of."""

    def __init__(self, platform: Platform, hearing: Hearing | None) -> None:
        self._platform = platform
        self._hearing = hearing

    def hello(self, who: WorkerHello) -> WorkerWelcome:
        return fleet.hello(self._platform, fleet.OWN, who)

    def round(self, said: WorkerRound) -> WorkerOrders:
        if self._hearing is None:
            return fleet.round_of(self._platform, fleet.OWN, said)
        if said.jobs:
            self._hearing.missed()  # asked at every round, so that an absence is known when it matters
        return fleet.round_of(self._platform, fleet.OWN, said, missed=self._hearing.missed)

    def started(self, said: JobStarted) -> None:
        fleet.started(self._platform, fleet.OWN, said)

    def leave(self, said: WorkerLeaves) -> None:
        fleet.leave(self._platform, fleet.OWN, said)


def own_worker(
    platform: Platform, executor: Executor | None = None, *, spare: bool = False, hearing: Hearing | None = None
) -> Worker:
    """The worker of this platform, not yet started. `spare`: a process stands ready for its next job.

    `hearing` is asked before a job is ended that was not heard; None: whoever is not heard is silent.
    """
    settings = platform.settings
    spare = spare and settings.job_command == local_job_command()
    plan = WorkerPlan(
        name=socket.gethostname(),
        platform_url=settings.job_base_url,
        runs_dir=settings.runs_dir,
        cache_dir=settings.cache_dir,
        state_dir=settings.data_dir / "workers",
        max_jobs=settings.max_jobs,
        max_deployments=settings.max_deployments,
        kinds=("eval", "training", "serving", "merge"),
        poll_s=settings.poll_s,
        gate=settings.gate,
        own_folders=False,
    )
    executor = executor or LocalExecutor(
        settings.job_command,
        settings.environ,
        spare=settings.cache_dir if spare else None,
        folder=settings.data_dir,
        sandboxed=not settings.sandbox.off,
    )
    return Worker(OwnDesk(platform, hearing), executor, plan, news=platform.db.work_waits)


class Caretaker:
    """Looks, as long as the platform runs, for leases that ran out. `start` and `stop` run it in a thread.

    It goes on while the loop that answers requests stands still, and jobs speak in vain: `hear` runs in that loop.
    """

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._last: float | None = None
        self._heard_at: float | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="caretaker", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=30)

    async def hear(self) -> None:
        """Goes on until it is cancelled."""
        while True:
            self._heard_at = time.monotonic()
            await asyncio.sleep(self._every_s)

    def step(self) -> None:
        """One look."""
        caretaker.look_after(self._platform, gap=self._gap())

    def _gap(self) -> str:
        """What kept this process from hearing any job, when that was long enough to matter; also that it was not there:
        a job whose worker is elsewhere went on meanwhile."""
        now, last = time.time(), self._last
        self._last = now
        settings = self._platform.settings
        long = max(settings.lease_s / 4, 4 * self._every_s)
        if last is None:
            return "the platform was restarted"
        still = max(now - last, time.monotonic() - self._heard_at if self._heard_at is not None else 0.0)
        return f"the platform was suspended for {still:.0f} s" if still >= long else ""

    @property
    def _every_s(self) -> float:
        return min(2.0, max(self._platform.settings.poll_s, self._platform.settings.lease_s / 8))

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            try:
                self.step()
            except Exception:
                log.exception("housekeeping of the runs failed")
