"""Logins wait for an approval now, not for a callback."""

from osmosis.classic.auth import (
    LoginError as LoginError,
)

__all__ = [
    "LoginError",
]
