"""Calls of the platform."""

from osmosis.classic.auth import (
    AuthenticationExpiredError as AuthenticationExpiredError,
)
from osmosis.classic.auth import (
    PlatformAPIError as PlatformAPIError,
)
from osmosis.classic.auth import (
    platform_request as platform_request,
)

__all__ = [
    "AuthenticationExpiredError",
    "PlatformAPIError",
    "platform_request",
]
