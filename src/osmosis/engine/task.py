import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from osmosis.records.run.rows import Key, Row, place_key
from osmosis.sdk.user_code import GRACE_S, Blocked, contain, loop_user, stop_task

T = TypeVar("T")

HELD_S = 0.5  # Seconds for which code may keep the event loop before it counts as keeping it from others
LATE_S = 0.1


class LoopUse:
    def __init__(self) -> None:
        self.held_s = 0.0


class Deadline:
    def __init__(self, seconds: float | None, *, grace_s: float = GRACE_S) -> None:
        self.seconds = seconds
        self.fired = False
        self._grace_s = grace_s
        self._when: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._expiry: asyncio.Future[None] | None = None
        self._user: Task | None = None
        self._held = (0.0, 0.0)
        self._was_late = False

    async def run(self, work: Awaitable[T], name: str = "the code") -> T:
        loop = asyncio.get_running_loop()
        self._user = cast("Task | None", loop_user.get())
        self._held = _read_loop_use(self._user)
        self._expiry = loop.create_future()
        self.restart()
        task = loop.create_task(contain(work), name=self._user.name if self._user else name)
        either: set[asyncio.Future[Any]] = {task, self._expiry}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await stop_task(task, self._grace_s, name=name)
            raise
        finally:
            self.stop()
            self._expiry = None
        if not task.done():
            await stop_task(task, self._grace_s, name=name)
            raise asyncio.TimeoutError
        try:
            return task.result()
        except Blocked:
            self.fired = True
            raise asyncio.TimeoutError from None

    def restart(self) -> None:
        if self._expiry is not None and self.seconds is not None:
            self._set_timer(asyncio.get_running_loop().time() + self.seconds)

    def stop(self) -> None:
        self._when = None
        if self._user is not None:
            self._user.ends_at = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def extend(self, seconds: float) -> None:
        if self._when is not None:
            self._when += seconds
            if self._user is not None:
                self._user.ends_at = self._when

    def end(self) -> None:
        self.stop()
        self.fired = True
        if self._expiry is not None and not self._expiry.done():
            self._expiry.set_result(None)

    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._when = when
        if self._user is not None:
            self._user.ends_at = when
        self._timer = asyncio.get_running_loop().call_at(when, self._check)

    def _check(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._when is None:
            return
        if now < self._when:
            self._set_timer(self._when)
        elif (owed := self._owed(now - self._when)) > 0:
            self._set_timer(now + owed)
        else:
            self.end()

    def _owed(self, late: float) -> float:
        before, self._held = self._held, _read_loop_use(self._user)
        others, own = self._held[0] - before[0], self._held[1] - before[1]
        if others > 0 or own > 0:
            return others
        # The timer came too late. Given back once: under a loop that is always late, nothing would end.
        was_late, self._was_late = self._was_late, self._was_late or late >= LATE_S
        return late if late >= LATE_S and not was_late else 0.0


def _read_loop_use(user: "Task | None") -> tuple[float, float]:
    if user is None or user.loop_use is None:
        return 0.0, 0.0
    return user.loop_use.held_s - user.held_s, user.held_s


class Waits:
    def __init__(self) -> None:
        self.seconds = 0.0
        self._until = 0.0

    def add(self, seconds: float) -> float:
        now = time.monotonic()
        end = now + seconds
        fresh = max(0.0, end - max(now, self._until))
        self._until = max(self._until, end)
        self.seconds += fresh
        return fresh


@dataclass(slots=True, eq=False)
class Task:
    row: Row
    attempt: int
    rollout_id: str
    step: int = 0
    stage: str = "waiting"
    since: float = field(default_factory=time.monotonic)
    loop_use: LoopUse | None = None
    held_s: float = 0.0  # Seconds for which this attempt kept the event loop from others
    ends_at: float | None = None  # When its code has to end, on the monotonic clock; None without a limit
    on_enter: Callable[[], None] | None = None
    left_behind: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"row {self.row.index} attempt {self.attempt}"

    @property
    def key(self) -> Key:
        return (self.step, self.row.key or place_key(self.row.index), self.attempt)

    def enter(self, stage: str) -> None:
        self.stage = stage
        self.since = time.monotonic()
        if self.on_enter is not None:
            self.on_enter()
