"""A server that is made when somebody asks for it: for a rollout's `main.py` that is loaded to run its agent here.

Inside `apps_deferred`, `osmosis.create_rollout_server` and `osmosis.create_app` give a stand-in. Whoever serves it,
adds to it or looks at it gets the real FastAPI app, which is made then; who does not never loads a web framework.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import Any

_deferring: ContextVar[bool] = ContextVar("osmosis_apps_deferred", default=False)


@contextmanager
def apps_deferred() -> Iterator[None]:
    """Apps that are made inside the block are made when they are first used."""
    token = _deferring.set(True)
    try:
        yield
    finally:
        _deferring.reset(token)


def deferring() -> bool:
    """Whether an app that is made now can wait."""
    return _deferring.get()


def deferred_maker(home: str, name: str) -> Callable[..., DeferredApp]:
    """What stands in for the function `name` of the module `home`, which makes an app."""

    def make(*args: object, **kwargs: object) -> DeferredApp:
        return DeferredApp(lambda: getattr(import_module(home), name)(*args, **kwargs))

    make.__name__ = make.__qualname__ = name
    return make


class DeferredApp:
    """An ASGI app that `make` makes at its first use. To everybody but `type` it is that app."""

    def __init__(self, make: Callable[[], Any]) -> None:
        object.__setattr__(self, "_make", make)
        object.__setattr__(self, "_made", None)

    @property  # type: ignore[misc]  # what isinstance asks
    def __class__(self) -> type:
        # Only who has loaded one of these can ask whether this is one: until then nothing need be loaded to answer.
        asked = "fastapi" in sys.modules or "starlette.applications" in sys.modules
        found: type = import_module("fastapi").FastAPI if asked else DeferredApp
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(_made(self), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(_made(self), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(_made(self), name)

    def __dir__(self) -> list[str]:
        return dir(_made(self))

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        await _made(self)(scope, receive, send)


def _made(app: DeferredApp) -> Any:
    found = object.__getattribute__(app, "_made")
    if found is None:
        found = object.__getattribute__(app, "_make")()
        object.__setattr__(app, "_made", found)
    return found
