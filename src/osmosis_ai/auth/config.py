"""Which platform."""

from osmosis.client.settings import (
    platform_url as platform_url,
)
from osmosis.paths import (
    DEFAULT_PLATFORM_URL as DEFAULT_PLATFORM_URL,
)

__all__ = [
    "DEFAULT_PLATFORM_URL",
    "platform_url",
]
