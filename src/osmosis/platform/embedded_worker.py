"""The platform's own worker, whose jobs read its disk, and the thread that reaps expired leases."""

import asyncio
import logging
import math
import socket
import time

import httpx

from osmosis.base.net import is_loopback
from osmosis.platform import Platform
from osmosis.platform.background import RepeatingThread
from osmosis.platform.scheduling import leases
from osmosis.platform.scheduling.workers import WorkerDesk
from osmosis.worker.executors.executor import Executor
from osmosis.worker.executors.local import LocalExecutor
from osmosis.worker.loop import Worker, WorkerPlan

log = logging.getLogger(__name__)
TIMEOUT_S = 5.0
STANDSTILL_S = 4.0


def build_embedded_worker(
    platform: Platform, executor: Executor | None = None, *, reachability: "Reachability | None" = None
) -> Worker:
    """Return the platform's worker; `reachability` is asked before a silent job is ended."""
    settings = platform.settings
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
        settings.job_command, settings.environ, folder=settings.data_dir, sandboxed=not settings.sandbox.off
    )
    desk = WorkerDesk(platform, was_unreachable=reachability.was_unreachable) if reachability else WorkerDesk(platform)
    return Worker(desk, executor, plan, news=platform.db.work_waits)


class LeaseReaper(RepeatingThread):
    """A thread that reaps leases; `note_loop_alive` runs in the event loop: while that stands still, none is heard."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        every_s = min(2.0, max(platform.settings.poll_s, platform.settings.lease_s / 8))
        super().__init__("housekeeping of the runs", every_s, self.step)
        self._last: float | None = None
        self._loop_alive_at: float | None = None

    async def note_loop_alive(self) -> None:
        while True:
            self._loop_alive_at = time.monotonic()
            await asyncio.sleep(self._every_s)

    def step(self) -> None:
        leases.reap(self._platform, gap=self._gap())

    def _gap(self) -> str:
        now, last = time.time(), self._last
        self._last = now
        long = max(self._platform.settings.lease_s / 4, 4 * self._every_s)
        if last is None:
            return "the platform was restarted"
        still = max(now - last, time.monotonic() - self._loop_alive_at if self._loop_alive_at is not None else 0.0)
        return f"the platform was suspended for {still:.0f} s" if still >= long else ""


class Reachability:
    def __init__(self, url: str, lease_s: float) -> None:
        self._url = f"{url.rstrip('/')}/health"
        self._lease_s = lease_s
        self._http = httpx.Client(timeout=min(TIMEOUT_S, lease_s / 4), trust_env=not is_loopback(url))
        self._checked_at: float | None = None
        self._failed_at: float | None = None

    def was_unreachable(self) -> bool:
        now = time.monotonic()
        since = math.inf if self._checked_at is None else now - self._checked_at
        if since >= self._lease_s / 8:
            try:
                healthy = self._http.get(self._url).status_code == 200
            except httpx.HTTPError:
                healthy = False
            if not healthy and not self._failed_lately():
                log.warning("nobody answers at %s: jobs are not ended for being silent", self._url)
            if not healthy or since > max(self._lease_s, STANDSTILL_S):  # nobody checked: it may have been away
                self._failed_at = time.monotonic()
            self._checked_at = time.monotonic()
        return self._failed_lately()

    def _failed_lately(self) -> bool:
        return self._failed_at is not None and time.monotonic() - self._failed_at < self._lease_s
