"""Schemas of our own are built without pydantic's plugins, which are for the models of users: looking for them reads
what every installed package says of itself.

Only an environment variable turns them off. It is set while there is one thread, and not later: another one may be
copying the environment just then, for a process that it starts. Imports no pydantic.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

VARIABLE = "PYDANTIC_DISABLE_PLUGINS"


@contextmanager
def without_plugins() -> Iterator[None]:
    """No plugin is looked for inside, as far as that can be said; what the environment says already stays."""
    alone = threading.active_count() == 1 and VARIABLE not in os.environ
    if alone:
        os.environ[VARIABLE] = "__all__"
    try:
        yield
    finally:
        if alone:
            os.environ.pop(VARIABLE, None)
