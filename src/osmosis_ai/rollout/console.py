"""Printing."""

from osmosis.serve.server.console import (
    RICH_AVAILABLE as RICH_AVAILABLE,
)
from osmosis.serve.server.console import (
    Console as Console,
)
from osmosis.serve.server.console import (
    console as console,
)

__all__ = [
    "RICH_AVAILABLE",
    "Console",
    "console",
]
