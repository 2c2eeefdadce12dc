"""Gets finished rollouts onto disk without making the event loop wait: batches them, one `fsync` per batch, in a
thread. A rollout is handed on (and only then counted) when it is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from osmosis.records.rollout import Rollout

from .journal import Journal, JournalBatch

LINGER_S = 0.02
"""How long a batch gathers: a bound on how late a rollout is counted, and on how often the disk is waited for. Each
time the thread that waits takes the interpreter's lock from the event loop more than once."""
BACKLOG = 2048


class Recorder:
    """`put` rollouts, `stored` hears of them; without a journal at once."""

    def __init__(
        self, journal: Journal | None, stored: Callable[[list[Rollout]], None], *, linger_s: float = LINGER_S
    ) -> None:
        self._linger_s = linger_s
        self.error: Exception | None = None
        """The journal failed: what was in flight then is not stored, and nothing more will be."""
        self.failed = asyncio.Event()
        """Set with `error`."""
        self._journal = journal
        self._stored = stored
        self._pending: list[Rollout] = []
        self._writing = False
        self._linger: asyncio.TimerHandle | None = None
        """Set while a batch gathers."""
        self._draining = False
        self._began = 0.0
        """When the last batch was on its way, on the event loop's clock."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal") if journal is not None else None

    def put(self, rollout: Rollout) -> None:
        if self._journal is None:
            self._stored([rollout])
            return
        if self.error is not None:
            return
        self._pending.append(rollout)
        if not self._writing:
            self._writing = True
            self._idle.clear()
            self._linger = self._loop.call_later(self._linger_s, self._write)

    @property
    def behind(self) -> bool:
        """Too much is waiting for the disk: start nothing new until `drain`."""
        return len(self._pending) > BACKLOG

    async def drain(self) -> None:
        """Returns when everything put so far is stored or the disk has failed; nothing gathers any longer."""
        self._draining = True
        try:
            if self._linger is not None:
                self._linger.cancel()
                self._write()
            await self._idle.wait()
        finally:
            self._draining = False

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=not self._writing)  # a write that hangs is not waited for

    def _write(self) -> None:
        assert self._journal is not None
        self._linger = None
        self._began = self._loop.time()
        given, self._pending = self._pending, []
        done: asyncio.Future[None]
        try:
            batch = self._journal.batch(given)
            done = self._loop.run_in_executor(self._thread, self._journal.write, batch)
        except Exception as error:  # noqa: BLE001 - a recorder that dies must end the run, whatever it died of
            batch, done = JournalBatch(), self._loop.create_future()
            done.set_exception(error)
        done.add_done_callback(lambda done: self._written(batch, done))

    def _written(self, batch: JournalBatch, done: asyncio.Future[None]) -> None:
        assert self._journal is not None
        problem = None if done.cancelled() else done.exception()  # never left unseen: the run would wait for ever
        try:
            if problem is None:
                self._stored(self._journal.written(batch))
        except Exception as error:  # noqa: BLE001 - whoever counts them is as needed as the disk
            problem = error
        if isinstance(problem, Exception):
            self.error = problem
            self._pending.clear()
            self.failed.set()
        if self._pending:
            wait_s = 0.0 if self._draining else self._began + self._linger_s - self._loop.time()
            self._linger = self._loop.call_later(max(0.0, wait_s), self._write)
        else:
            self._writing = False
            self._idle.set()
