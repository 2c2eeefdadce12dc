"""Logins and workspaces: who one is, and what one may speak for."""

from __future__ import annotations

from urllib.parse import quote

from osmosis.records.contract.accounts import (
    BrowserLink,
    ConnectRepository,
    DeviceOffer,
    DevicePoll,
    DeviceStart,
    IssuedLogin,
    NewToken,
    NewWorkspace,
    TokenList,
    TokenRow,
    Verified,
    WorkspaceList,
    WorkspaceRow,
)
from osmosis.records.contract.repository import WebhookAddress

from .access import AccessClient
from .http import Http


class Accounts:
    """Tokens: made by device flow or bootstrap, verified, revoked."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def authorize(self, device_name: str) -> DeviceOffer:
        """Start a device login: where a person approves it."""
        return self._http.read(
            DeviceOffer, "POST", "device/authorize", json=DeviceStart(device_name=device_name), scoped=False
        )

    def poll(self, device_code: str) -> IssuedLogin:
        """The login, once it is approved; raises with `authorization_pending` or `slow_down` as its text."""
        return self._http.read(
            IssuedLogin, "POST", "device/token", json=DevicePoll(device_code=device_code), scoped=False
        )

    def bootstrap(self, device_name: str) -> IssuedLogin:
        """As `poll`; this client's token must be the platform's bootstrap token."""
        return self._http.read(
            IssuedLogin, "POST", "bootstrap", json=DeviceStart(device_name=device_name), scoped=False
        )

    def verify(self) -> Verified:
        """Who the token belongs to, and the workspace when the client speaks for one."""
        return self._http.read(Verified, "GET", "verify")

    def browser_link(self) -> BrowserLink:
        """A link that logs a browser in once."""
        return self._http.read(BrowserLink, "POST", "browser-login", json={}, scoped=False)

    def tokens(self) -> list[TokenRow]:
        """The usable tokens of the person."""
        return self._http.read(TokenList, "GET", "tokens", scoped=False).tokens

    def make_token(self, wish: NewToken) -> IssuedLogin:
        """A token by name; its text is in this answer only."""
        return self._http.read(IssuedLogin, "POST", "tokens", json=wish, scoped=False)

    def revoke(self, token_id: str, *, logout: bool = False) -> None:
        """Revoke a token and all that was made with it; at a `logout` what was made by name goes on."""
        path = f"tokens/{quote(token_id, safe='')}"
        self._http.call("DELETE", path, params={"logout": "true" if logout else None}, scoped=False, timeout=5.0)


class Workspaces:
    """The workspaces of a person."""

    def __init__(self, http: Http) -> None:
        self._http = http
        self.access = AccessClient(http)

    def list(self) -> list[WorkspaceRow]:
        """All of them."""
        return self._http.read(WorkspaceList, "GET", "workspaces", scoped=False).workspaces

    def find(self, name: str) -> WorkspaceRow | None:
        """One of them by its exact name."""
        return next((row for row in self.list() if row.name == name), None)

    def create(self, name: str) -> WorkspaceRow:
        """A new workspace with a repository of its own."""
        return self._http.read(WorkspaceRow, "POST", "workspaces", json=NewWorkspace(name=name), scoped=False)

    def webhook(self) -> WebhookAddress:
        """What to tell the git host of the workspace that the client speaks for."""
        return self._http.read(WebhookAddress, "GET", "webhook")

    def connect(self, name: str, repository_url: str, secret: str | None = None) -> WorkspaceRow:
        """Connect a repository elsewhere."""
        path = f"workspaces/{quote(name, safe='')}/connect"
        body = ConnectRepository(repository_url=repository_url, secret=secret)
        return self._http.read(WorkspaceRow, "POST", path, json=body, scoped=False)
