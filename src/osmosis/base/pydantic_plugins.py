"""Schemas of our own are built without pydantic's plugins, which are for the models of users: looking for them reads
what every installed package says of itself.

Only an environment variable turns them off, and what looks at it brings `importlib.metadata` along, a thirtieth of what
a command takes to start: something that knows no plugins stands in its place meanwhile. Both are done while there is
one thread, and not later: another one may be copying the environment just then, for a process that it starts.
Imports no pydantic.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

VARIABLE = "PYDANTIC_DISABLE_PLUGINS"
_LOADER = "pydantic.plugin._loader"
"""Where a version of pydantic has none of that name, nothing is gained and nothing lost."""


@contextmanager
def without_plugins() -> Iterator[None]:
    """No plugin is looked for inside, as far as that can be said; what the environment says already stays."""
    if threading.active_count() > 1 or VARIABLE in os.environ:
        yield
        return
    os.environ[VARIABLE] = "__all__"
    stand_in = None
    if _LOADER not in sys.modules:
        stand_in = sys.modules[_LOADER] = _NoPlugins(_LOADER)
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None)
        if stand_in is not None and sys.modules.get(_LOADER) is stand_in:
            del sys.modules[_LOADER]


class _NoPlugins(ModuleType):
    @staticmethod
    def get_plugins() -> tuple[()]:
        return ()
