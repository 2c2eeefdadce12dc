"""Logins of 0.2, over our credential store. Nothing is deleted on a 401: an expired login is an error with a hint."""

import os
import socket
import time
import webbrowser
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone

from osmosis.base.jsonable import JsonObject
from osmosis.client import PlatformClient
from osmosis.client.credentials import CredentialStore, Login
from osmosis.client.http import platform_url
from osmosis.compat.console import console
from osmosis.errors import AuthRequired, OsmosisError
from osmosis.records.api.accounts import DeviceOffer, IssuedLogin

LOGIN_TIMEOUT_SECONDS = 300.0
_UNSAID_LIFETIME = timedelta(days=90)


class LoginError(OsmosisError):
    code = "AUTH_REQUIRED"


class AuthenticationExpiredError(AuthRequired): ...


class PlatformAPIError(OsmosisError):
    def __init__(self, message: str, status_code: int | None = None) -> None:
        super().__init__(message, status_code=status_code)
        self.status_code = status_code


@dataclass
class WorkspaceCredentials:
    access_token: str = field(repr=False)
    user: JsonObject
    expires_at: datetime  # Has a time zone
    organization: JsonObject = field(default_factory=dict)
    created_at: datetime | None = None
    token_id: str | None = None
    token_type: str = "Bearer"

    @classmethod
    def from_dict(cls, data: JsonObject) -> "WorkspaceCredentials":
        created = data.get("created_at")
        return cls(
            access_token=data["access_token"],
            user=dict(data.get("user") or {}),
            expires_at=_aware(data["expires_at"]),
            organization=dict(data.get("organization") or {}),
            created_at=_aware(created) if created else None,
            token_id=data.get("token_id"),
            token_type=data.get("token_type", "Bearer"),
        )

    def to_dict(self) -> JsonObject:
        data = {
            "access_token": self.access_token,
            "token_type": self.token_type,
            "expires_at": self.expires_at.isoformat(),
            "user": self.user,
            "organization": self.organization,
            "created_at": self.created_at.isoformat() if self.created_at else None,
            "token_id": self.token_id,
        }
        return {key: value for key, value in data.items() if value is not None}

    def is_expired(self) -> bool:
        if self.expires_at.tzinfo is None:
            raise ValueError("expires_at has no time zone")
        return self.expires_at <= datetime.now(timezone.utc)


@dataclass
class LoginResult:
    user: JsonObject
    organization: JsonObject
    expires_at: datetime
    revoked_previous_tokens: int = 0


def login(no_browser: bool = False, timeout: float = LOGIN_TIMEOUT_SECONDS) -> LoginResult:
    """Log in by a code that is approved in a browser, and store the login; raise `LoginError` when nobody approves."""
    url = platform_url(os.environ)
    with PlatformClient(url, None, ca_file=CredentialStore(os.environ).ca_file(url)) as client:
        offer = client.accounts.authorize(socket.gethostname())
        console.print(f"open {offer.verification_uri} and enter {offer.user_code}")
        if not no_browser:
            webbrowser.open(offer.verification_uri)
        answer = _wait(client, offer, timeout)
    saved = Login(
        url, token=answer.token, user=answer.user.to_dict(), token_id=answer.token_id, expires_at=answer.expires_at
    )
    CredentialStore(os.environ).save(saved)
    credentials = _credentials(saved)
    return LoginResult(credentials.user, credentials.organization, credentials.expires_at)


def _wait(client: PlatformClient, offer: DeviceOffer, timeout: float) -> IssuedLogin:
    pause, deadline = float(offer.interval), time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            return client.accounts.poll(offer.device_code)
        except OsmosisError as exc:
            if "slow_down" in exc.message:
                pause += 5
            elif "authorization_pending" not in exc.message:
                raise LoginError(f"the login was not approved: {exc.message}") from exc
        time.sleep(pause)
    raise LoginError(f"the login was not approved within {timeout:g} s", hint="osmosis login")


def get_valid_credentials() -> WorkspaceCredentials | None:
    login = CredentialStore(os.environ).find(platform_url(os.environ))
    return None if login is None or login.expired else _credentials(login)


def get_all_workspaces() -> list[tuple[str, WorkspaceCredentials, bool]]:
    store, current = CredentialStore(os.environ), platform_url(os.environ)
    workspaces = {}
    for url, workspace in store.logins():
        login = store.stored(url, workspace)
        if login is None:
            continue
        active = store.active_workspace(url)
        for organization in [login.organization] if workspace else login.workspaces or [{"name": active or url}]:
            name = str(organization["name"])
            credentials = replace(_credentials(login), organization=dict(organization))
            workspaces[url, name] = (name, credentials, url == current and name == (active or name))
    return list(workspaces.values())


def platform_request(
    endpoint: str,
    method: str = "GET",
    data: Mapping[str, object] | None = None,
    headers: dict[str, str] | None = None,
    timeout: float = 30.0,
    credentials: WorkspaceCredentials | None = None,
) -> JsonObject:
    """Call the platform's API (`/api/cli/verify`); raise `AuthenticationExpiredError` or `PlatformAPIError`."""
    import httpx

    login = credentials or get_valid_credentials()
    if login is None:
        raise AuthenticationExpiredError("not logged in", hint="osmosis login")
    sent = {**(headers or {}), "Authorization": f"Bearer {login.access_token}"}
    url = platform_url(os.environ).rstrip("/") + "/" + endpoint.lstrip("/")
    try:
        reply = httpx.request(method, url, json=data, headers=sent, timeout=timeout)
    except httpx.HTTPError as exc:
        raise PlatformAPIError(f"{endpoint}: {exc or type(exc).__name__}") from exc
    if reply.status_code == 401:
        raise AuthenticationExpiredError("the platform no longer accepts this login", hint="osmosis login")
    if reply.status_code >= 400:
        raise PlatformAPIError(f"{endpoint} answered {reply.status_code}: {reply.text[:500]}", reply.status_code)
    try:
        body: JsonObject = reply.json() if reply.content else {}
    except ValueError as exc:
        raise PlatformAPIError(f"{endpoint} did not answer with JSON", reply.status_code) from exc
    return body


def _credentials(login: Login) -> WorkspaceCredentials:
    try:
        ends = _aware(login.expires_at)
    except (TypeError, ValueError):
        ends = datetime.now(timezone.utc) + _UNSAID_LIFETIME
    return WorkspaceCredentials(
        access_token=login.token,
        user=login.user,
        expires_at=ends,
        organization=_organization(login),
        token_id=login.token_id,
    )


def _organization(login: Login) -> JsonObject:
    if login.organization or not login.active_workspace:
        return login.organization
    named = (row for row in login.workspaces if row.get("name") == login.active_workspace)
    return next(named, {"name": login.active_workspace})


def _aware(value: object) -> datetime:
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    if moment.tzinfo is None:
        raise ValueError(f"{value!r} has no time zone")
    return moment
