"""Which platform."""

from osmosis.base.paths import (
    DEFAULT_PLATFORM_URL as DEFAULT_PLATFORM_URL,
)
from osmosis.client.settings import (
    platform_url as platform_url,
)

__all__ = [
    "DEFAULT_PLATFORM_URL",
    "platform_url",
]
