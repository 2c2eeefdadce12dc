"""Logins."""

from osmosis.classic.auth import (
    AuthenticationExpiredError as AuthenticationExpiredError,
)
from osmosis.classic.auth import (
    LoginError as LoginError,
)
from osmosis.classic.auth import (
    LoginResult as LoginResult,
)
from osmosis.classic.auth import (
    PlatformAPIError as PlatformAPIError,
)
from osmosis.classic.auth import (
    WorkspaceCredentials as WorkspaceCredentials,
)
from osmosis.classic.auth import (
    get_all_workspaces as get_all_workspaces,
)
from osmosis.classic.auth import (
    get_valid_credentials as get_valid_credentials,
)
from osmosis.classic.auth import (
    login as login,
)
from osmosis.classic.auth import (
    platform_request as platform_request,
)

__all__ = [
    "AuthenticationExpiredError",
    "LoginError",
    "LoginResult",
    "PlatformAPIError",
    "WorkspaceCredentials",
    "get_all_workspaces",
    "get_valid_credentials",
    "login",
    "platform_request",
]
