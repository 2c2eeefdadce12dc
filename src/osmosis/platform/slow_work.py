"""Work that takes its time (git, files) runs in threads of its own, so that those that answer requests stay free.

Each kind has its own few threads: forty syncs that wait for one lock stop neither `/health` nor an upload.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Literal, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from anyio import CapacityLimiter, to_thread

Kind = Literal["sync", "files", "sign-in"]
AT_ONCE = 8
"""Of each kind; more wait for their turn."""

P = ParamSpec("P")
T = TypeVar("T")
_limiters: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Kind, CapacityLimiter]] = WeakKeyDictionary()


async def apart(kind: Kind, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work` answers, or raises."""
    own = _limiters.setdefault(asyncio.get_running_loop(), {})
    limiter = own.get(kind) or own.setdefault(kind, CapacityLimiter(AT_ONCE))
    return await to_thread.run_sync(partial(work, *args, **kwargs), limiter=limiter)
