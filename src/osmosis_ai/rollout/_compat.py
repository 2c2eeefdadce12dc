"""Everything optional then is part of the installation now."""

from osmosis.serve.server.console import (
    RICH_AVAILABLE as RICH_AVAILABLE,
)

__all__ = [
    "RICH_AVAILABLE",
]
