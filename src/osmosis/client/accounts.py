"""Logins, workspaces and Git Sync: the calls that say who one is and what the platform knows of a repository."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from .http import Http

Json = dict[str, Any]


class Accounts:
    """Tokens: made by device flow or bootstrap, verified, revoked."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def authorize(self, device_name: str) -> Json:
        """`device_code, user_code, verification_uri, expires_in, interval`."""
        return self._http.call("POST", "device/authorize", json={"deviceName": device_name}, scoped=False)

    def poll(self, device_code: str) -> Json:
        """`token, user, expires_at, token_id`; raises with `authorization_pending` or `slow_down` as its text."""
        return self._http.call("POST", "device/token", json={"device_code": device_code}, scoped=False)

    def bootstrap(self, device_name: str) -> Json:
        """As `poll`; this client's token must be the platform's bootstrap token."""
        return self._http.call("POST", "bootstrap", json={"deviceName": device_name}, scoped=False)

    def verify(self) -> Json:
        """`user, expires_at, token_id`, and `workspace` when the client speaks for one."""
        return self._http.call("GET", "verify")

    def browser_link(self) -> Json:
        """`{url, expires_in}`: a link that logs a browser in once."""
        return self._http.call("POST", "browser-login", json={}, scoped=False)

    def revoke(self, token_id: str) -> None:
        self._http.call("DELETE", f"tokens/{quote(token_id, safe='')}", scoped=False, timeout=5.0)


class Workspaces:
    """The workspaces of a person."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def list(self) -> list[Json]:
        """`{id, name, role, connected_repo: {repo_full_name, url} | null}` each."""
        return list(self._http.call("GET", "workspaces", scoped=False).get("workspaces") or [])

    def find(self, name: str) -> Json | None:
        """One of them by its exact name."""
        return next((row for row in self.list() if row.get("name") == name), None)

    def create(self, name: str) -> Json:
        """A new workspace with a repository of its own; the row."""
        return self._http.call("POST", "workspaces", json={"name": name}, scoped=False)

    def connect(self, name: str, repository_url: str) -> Json:
        """Connect a repository elsewhere; the row."""
        path = f"workspaces/{quote(name, safe='')}/connect"
        return self._http.call("POST", path, json={"repository_url": repository_url}, scoped=False)


class Sync:
    """What the platform has of the workspace's repository."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def state(self) -> Json:
        """Default branch, last synced commit, events."""
        return self._http.call("GET", "sync")

    def start(self) -> Json:
        """Ask the platform to look at the repository now; the state."""
        return self._http.call("POST", "sync", json={})

    def rollouts(self, *, branch: str | None = None) -> list[Json]:
        """Every rollout the platform has found."""
        return list(self._http.pages("rollouts", "rollouts", params={"branch": branch}))
