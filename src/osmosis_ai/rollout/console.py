"""Printing."""

from osmosis.sdk.console import (
    RICH_AVAILABLE as RICH_AVAILABLE,
)
from osmosis.sdk.console import (
    Console as Console,
)
from osmosis.sdk.console import (
    console as console,
)

__all__ = [
    "RICH_AVAILABLE",
    "Console",
    "console",
]
