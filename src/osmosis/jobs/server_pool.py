"""The rollout servers of one job as one `RolloutFn`: on this machine (`supervisor`), or on others (`server_elsewhere`).

A rollout goes to the server with the most room, and waits here, off its clock, while none has any. When the server of a
rollout is gone, another one does it from the beginning; one that does not answer gets none until it does. Only when no
server has been there for a while is that a failure, and it is the run's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from osmosis.base.tasks import end, until_one
from osmosis.engine.task import RolloutFn, Task
from osmosis.records.plan import EvalPlan
from osmosis.records.rollout import Category, Rollout
from osmosis.serve.drive.sandboxes import Sandboxes
from osmosis.serve.drive.traingate import TrainGate

from .job import JobFailed, JobLog, setup_failed

STEP = "rollout-server"
NONE_LEFT_S = 60.0
"""How long a step waits for a server that may come back."""
TRIES = 4
"""Servers that one rollout may lose: it may be what ends them."""


class Server(Protocol):
    """One of them."""

    name: str
    failed: asyncio.Future[JobFailed]
    """Done once it is gone for good."""
    on_change: Callable[[], None]
    """Called when it comes or goes."""

    @property
    def up(self) -> bool: ...

    @property
    def at_once(self) -> int | None:
        """How many rollouts it takes; None: no limit is known."""

    def running(self, gate: TrainGate, plan: EvalPlan) -> AbstractAsyncContextManager[RolloutFn]: ...

    def lost(self, rollout: Rollout) -> bool:
        """Whether the server failed, and not this rollout."""

    async def stop(self) -> None: ...


def nobody_hears() -> None:
    """Of a server that is in no pool: nobody wants to know that it comes or goes."""


@dataclass(slots=True, eq=False)
class _Place:
    server: Server
    rollout: RolloutFn
    in_flight: int = 0

    @property
    def up(self) -> bool:
        return self.server.up and not self.server.failed.done()

    @property
    def room(self) -> bool:
        at_once = self.server.at_once
        return self.up and (at_once is None or self.in_flight < at_once)

    @property
    def load(self) -> float:
        """Rollouts here, by how many it takes."""
        return self.in_flight / (self.server.at_once or 1)


@dataclass(slots=True, eq=False)
class _Waiting:
    place: asyncio.Future[_Place]
    been: set[str]
    """The servers that this rollout has lost."""


class ServerPool:
    """Use `running()`; `failed` then holds the `JobFailed` once no server is left."""

    def __init__(
        self,
        servers: Sequence[Server],
        log: JobLog,
        *,
        sandboxes: Sandboxes | None = None,
        patience_s: float = NONE_LEFT_S,
    ) -> None:
        """`sandboxes`: for the rollouts of servers in a boundary of this job."""
        self.sandboxes = sandboxes
        self.failed: asyncio.Future[JobFailed] = asyncio.get_running_loop().create_future()
        self._servers = list(servers)
        self._log = log
        self._patience_s = patience_s
        self._places: list[_Place] = []
        self._waiting: deque[_Waiting] = deque()
        self._news = asyncio.Event()

    @asynccontextmanager
    async def running(self, gate: TrainGate, plan: EvalPlan) -> AsyncIterator[RolloutFn]:
        """A `RolloutFn` over all of them."""
        async with AsyncExitStack() as stack:
            for server in self._servers:
                server.on_change = self._changed
                server.failed.add_done_callback(lambda _: self._changed())
                self._places.append(_Place(server, await stack.enter_async_context(server.running(gate, plan))))
            watching = asyncio.create_task(self._watch())
            try:
                yield self._rollout
            finally:
                await end(watching)

    async def stop(self) -> None:
        """Ends those of this machine; without harm when there are none."""
        await asyncio.gather(*(server.stop() for server in self._servers))

    async def _rollout(self, task: Task) -> Rollout:
        """One attempt at one row, on as many servers as it takes."""
        been: set[str] = set()
        losses = 0
        while True:
            place = await self._admitted(been)
            try:
                rollout = await self._on(place, task)
            finally:
                self._leave(place)
            if rollout is not None:
                losses += place.server.lost(rollout)
                if not place.server.lost(rollout) or losses >= TRIES:
                    return rollout
            been.add(place.server.name)
            task.enter("waiting")
            why = rollout.failure.message if rollout is not None and rollout.failure is not None else "it has failed"
            self._log.write(STEP, f"{task.name} begins anew on another server: {place.server.name}: {why}", "debug")

    async def _on(self, place: _Place, task: Task) -> Rollout | None:
        """What came of it there; None when the server has failed for good meanwhile."""
        going = asyncio.ensure_future(place.rollout(task))
        try:
            await until_one(going, place.server.failed)
            return going.result() if going.done() else None
        finally:
            await end(going)

    async def _admitted(self, been: set[str]) -> _Place:
        """Its place, in turn."""
        if not self._waiting and (place := self._free(been)) is not None:
            place.in_flight += 1
            return place
        waiting = _Waiting(asyncio.get_running_loop().create_future(), been)
        self._waiting.append(waiting)
        try:
            return await waiting.place
        except asyncio.CancelledError:
            if waiting.place.done() and not waiting.place.cancelled():
                self._leave(waiting.place.result())
            raise

    def _free(self, been: set[str]) -> _Place | None:
        """The least busy of those with room; one that this rollout has lost only where there is no other."""
        others = [place for place in self._places if place.up and place.server.name not in been]
        free = [place for place in others or self._places if place.room]
        return min(free, key=lambda place: place.load, default=None)

    def _leave(self, place: _Place) -> None:
        place.in_flight -= 1
        self._hand_out()

    def _hand_out(self) -> None:
        """What has room now, to those that wait longest."""
        kept: list[_Waiting] = []
        while self._waiting and any(place.room for place in self._places):
            first = self._waiting.popleft()
            if first.place.done():
                continue
            place = self._free(first.been)
            if place is None:  # room only where it has been
                kept.append(first)
                continue
            place.in_flight += 1
            first.place.set_result(place)
        self._waiting.extendleft(reversed(kept))

    def _changed(self) -> None:
        self._news.set()
        self._hand_out()

    async def _watch(self) -> None:
        """Until no server is left."""
        while True:
            self._news.clear()
            gone = [place.server.failed.result() for place in self._places if place.server.failed.done()]
            if len(gone) == len(self._places):
                return self.failed.set_result(gone[-1])
            there = any(place.up for place in self._places)
            try:
                await asyncio.wait_for(self._news.wait(), None if there else self._patience_s)
            except asyncio.TimeoutError:
                return self.failed.set_result(self._none_left(gone))

    def _none_left(self, gone: Sequence[JobFailed]) -> JobFailed:
        names = ", ".join(place.server.name for place in self._places if not place.server.failed.done())
        return setup_failed(
            f"no rollout server has answered for {self._patience_s:g} s: {names}"
            + (f"; {len(gone)} have failed: {gone[-1].message}" if gone else ""),
            fix="start them again (osmosis serve), then: osmosis train resume; what is stored of the step is kept",
            category=Category.SERVER_DIED,
        )
