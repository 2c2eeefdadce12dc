"""Logins on this machine."""

from osmosis.classic.auth import (
    WorkspaceCredentials as WorkspaceCredentials,
)
from osmosis.classic.auth import (
    get_all_workspaces as get_all_workspaces,
)
from osmosis.classic.auth import (
    get_valid_credentials as get_valid_credentials,
)

__all__ = [
    "WorkspaceCredentials",
    "get_all_workspaces",
    "get_valid_credentials",
]
