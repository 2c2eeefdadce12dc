"""Logging in."""

from osmosis.classic.auth import (
    LoginError as LoginError,
)
from osmosis.classic.auth import (
    LoginResult as LoginResult,
)
from osmosis.classic.auth import (
    login as login,
)

__all__ = [
    "LoginError",
    "LoginResult",
    "login",
]
