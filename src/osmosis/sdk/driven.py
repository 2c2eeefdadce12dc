"""User code on the event loop, step by step: what it raises stays its own, how long it keeps the loop from everybody
else is known, and code that goes on after it was cancelled is left where it stands.

A coroutine that is left behind is never resumed: it makes no more calls and spends nothing. Time limits are set
elsewhere (`calls`, `engine.clock`); nothing here decides when.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from contextlib import suppress
from contextvars import ContextVar
from time import monotonic
from typing import Any, Protocol, TypeVar

from osmosis.base.json_types import JsonObject

T = TypeVar("T")

HELD_S = 0.5
"""A single step that takes longer keeps the loop from others noticeably."""


class CodeExited(Exception):
    """The code called `sys.exit`, or raised something else that is meant to end a process."""


class LeftBehind(Exception):
    """The code was cancelled, went on, and was left where it stood."""


class LimitReached(BaseException):
    """A rollout stands before a model call beyond one of its limits: it is over, and scored as far as it came.

    No `Exception`: an agent that retries whatever a call raises would go on.
    """

    def __init__(self, reason: str, messages: list[JsonObject]) -> None:
        super().__init__(reason)
        self.reason = reason
        """The finish reason."""
        self.messages = messages
        """The conversation that would have been sent."""


class LoopUse:
    """Who runs on one event loop now, and how long it was held by single steps."""

    __slots__ = ("held_s", "running", "said", "since")

    def __init__(self) -> None:
        self.running: LoopUser | None = None
        self.since = 0.0
        """When `running` began its step, on the monotonic clock."""
        self.held_s = 0.0
        self.said: list[tuple[LoopUser, float]] = []
        """Each long step with its seconds, until the watchdog has told it."""


class LoopUser(Protocol):
    """A rollout, as far as its use of the event loop goes."""

    loop_use: LoopUse | None
    held_s: float
    left_behind: list[str]

    @property
    def name(self) -> str: ...


class Patience(Protocol):
    """Whoever decides that cancelled code is not waited for any more."""

    given_up: bool


loop_user: ContextVar[LoopUser | None] = ContextVar("osmosis_loop_user", default=None)
"""The rollout that this code belongs to; its tasks inherit it."""


@types.coroutine
def driven(work: Coroutine[Any, Any, T], limit: Patience | None = None) -> Generator[Any, Any, T]:
    """Awaits `work`. `CodeExited` for an exception that would end the whole process; `LeftBehind` when it is cancelled
    again after `limit` has given it up."""
    user = loop_user.get()
    use = user.loop_use if user is not None else None
    thrown: BaseException | None = None
    while True:
        timed = use if use is not None and use.running is None else None  # nested code: once, by the outermost
        if timed is not None:
            timed.running, timed.since = user, monotonic()
        try:
            waits_for = work.send(None) if thrown is None else work.throw(thrown)
        except StopIteration as end:
            result: T = end.value
            return result
        except (Exception, asyncio.CancelledError, LimitReached):
            raise
        except BaseException as exc:
            # asyncio lets these through its tasks: one rollout's sys.exit() would end the run with all the others.
            raise CodeExited(
                f"the code raised {type(exc).__name__}({exc}), which would have ended the process"
            ) from exc
        finally:
            if timed is not None:
                spent = monotonic() - timed.since
                timed.running = None
                if spent >= HELD_S and user is not None:
                    _note(timed, user, spent)
        try:
            yield waits_for
            thrown = None
        except GeneratorExit:
            with suppress(RuntimeError):  # it ignores even this
                work.close()
            raise
        except BaseException as exc:  # noqa: BLE001 - handed to the code, as `await` would
            if limit is not None and limit.given_up:
                _keep(work)
                raise LeftBehind from None
            thrown = exc


def leave(task: asyncio.Task[Any]) -> None:
    """Nobody waits for this task any more, the end of the event loop included."""
    _keep(task)
    asyncio._unregister_task(task)  # documented: else asyncio.run would wait for it
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio's own, in every version
    task.add_done_callback(_retrieve)


def _keep(left: object) -> None:
    """For ever, the end of the interpreter included: closing it would resume it once more, to no good."""
    import ctypes  # only the rarest of runs needs it

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(left))


def _retrieve(task: asyncio.Task[Any]) -> None:
    # Nobody waits for its exception; without this asyncio reports it as never retrieved.
    if not task.cancelled():
        task.exception()


def _note(use: LoopUse, user: LoopUser, spent: float) -> None:
    use.held_s += spent
    user.held_s += spent
    use.said.append((user, spent))
