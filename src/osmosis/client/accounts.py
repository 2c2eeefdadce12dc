from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING
from urllib.parse import quote

from osmosis.client.http import Params, Section
from osmosis.records.api.accounts import (
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
from osmosis.records.api.people import (
    AuditPage,
    AuditRow,
    MemberList,
    MemberRole,
    MemberRow,
    NewMember,
    NewPerson,
    PersonList,
    PersonRow,
    Quota,
    QuotaUse,
    WantedLink,
)
from osmosis.records.api.policy import Role
from osmosis.records.api.workers import WorkerList, WorkerRemoved, WorkerRow
from osmosis.records.api.workspaces import WIRE_SCOPE, NewSecret, SecretName, SecretPage, SecretRow, WebhookAddress

if TYPE_CHECKING:
    from .platform import PlatformClient


class Accounts(Section):
    def authorize(self, device_name: str) -> DeviceOffer:
        body = DeviceStart(device_name=device_name)
        return self._http.read(DeviceOffer, "POST", "device/authorize", json=body, scoped=False)

    def poll(self, device_code: str) -> IssuedLogin:
        """Return the login once it is approved; raise with `authorization_pending` or `slow_down` as the text
        before."""
        body = DevicePoll(device_code=device_code)
        return self._http.read(IssuedLogin, "POST", "device/token", json=body, scoped=False)

    def bootstrap(self, device_name: str) -> IssuedLogin:
        body = DeviceStart(device_name=device_name)
        return self._http.read(IssuedLogin, "POST", "bootstrap", json=body, scoped=False)

    def verify(self) -> Verified:
        return self._http.read(Verified, "GET", "verify")

    def browser_link(self) -> BrowserLink:
        return self._http.read(BrowserLink, "POST", "browser-login", json={}, scoped=False)

    def tokens(self) -> list[TokenRow]:
        return self._http.read(TokenList, "GET", "tokens", scoped=False).tokens

    def make_token(self, wish: NewToken) -> IssuedLogin:
        return self._http.read(IssuedLogin, "POST", "tokens", json=wish, scoped=False)

    def revoke(self, token_id: str, *, logout: bool = False) -> None:
        """Revoke a token and its descendants; at a `logout`, tokens created by name stay."""
        path = f"tokens/{quote(token_id, safe='')}"
        self._http.call("DELETE", path, params={"logout": "true" if logout else None}, scoped=False, timeout=5.0)


class Workspaces(Section):
    def __init__(self, http: PlatformClient) -> None:
        super().__init__(http)
        self.access = AccessClient(http)

    def list(self) -> list[WorkspaceRow]:
        return self._http.read(WorkspaceList, "GET", "workspaces", scoped=False).workspaces

    def find(self, name: str) -> WorkspaceRow | None:
        return next((row for row in self.list() if row.name == name), None)

    def create(self, name: str) -> WorkspaceRow:
        return self._http.read(WorkspaceRow, "POST", "workspaces", json=NewWorkspace(name=name), scoped=False)

    def rename(self, name: str, new: str) -> WorkspaceRow:
        path = f"workspaces/{quote(name, safe='')}"
        return self._http.read(WorkspaceRow, "PATCH", path, json=NewWorkspace(name=new), scoped=False)

    def delete(self, name: str) -> None:
        self._http.call("DELETE", f"workspaces/{quote(name, safe='')}", scoped=False)

    def webhook(self) -> WebhookAddress:
        return self._http.read(WebhookAddress, "GET", "webhook")

    def connect(self, name: str, repository_url: str, secret: str | None = None) -> WorkspaceRow:
        path = f"workspaces/{quote(name, safe='')}/connect"
        body = ConnectRepository(repository_url=repository_url, secret=secret)
        return self._http.read(WorkspaceRow, "POST", path, json=body, scoped=False)


class AccessClient(Section):
    def __init__(self, http: PlatformClient) -> None:
        super().__init__(http)
        self.members = Members(http)
        self.people = People(http)
        self.audit = Audit(http)

    def quota(self) -> QuotaUse:
        return self._http.read(QuotaUse, "GET", "quota")

    def set_quota(self, workspace: str, wish: Quota) -> QuotaUse:
        path = f"workspaces/{quote(workspace, safe='')}/quota"
        return self._http.read(QuotaUse, "PUT", path, json=wish.model_dump(exclude_none=True), scoped=False)


class Members(Section):
    def list(self) -> list[MemberRow]:
        return self._http.read(MemberList, "GET", "members").members

    def invite(self, person: str, role: Role) -> MemberRow:
        return self._http.read(MemberRow, "POST", "members", json=NewMember(person=person, role=role))

    def change(self, person: str, role: Role) -> MemberRow:
        return self._http.read(MemberRow, "PUT", f"members/{quote(person, safe='')}", json=MemberRole(role=role))

    def remove(self, person: str) -> None:
        self._http.call("DELETE", f"members/{quote(person, safe='')}")


class People(Section):
    """Everybody the platform knows; for operators."""

    def list(self) -> list[PersonRow]:
        return self._http.read(PersonList, "GET", "users", scoped=False).users

    def add(self, person: NewPerson) -> PersonRow:
        return self._http.read(PersonRow, "POST", "users", json=person, scoped=False)

    def remove(self, handle: str, heir: str | None = None) -> None:
        self._http.call("DELETE", f"users/{quote(handle, safe='')}", params={"heir": heir}, scoped=False)

    def link(self, handle: str, hours: int) -> BrowserLink:
        path = f"users/{quote(handle, safe='')}/link"
        return self._http.read(BrowserLink, "POST", path, json=WantedLink(hours=hours), scoped=False)

    def unlink(self, handle: str) -> None:
        self._http.call("DELETE", f"users/{quote(handle, safe='')}/identities", scoped=False)


class Audit(Section):
    def entries(self, *, count: int | None, everywhere: bool, action: str, actor: str) -> Iterator[AuditRow]:
        """Yield the newest `count` entries (None: all) of the workspace, or of the whole platform."""
        path = "platform/audit" if everywhere else "audit"
        pages = self._http.pages(AuditPage, path, params={"action": action, "actor": actor})
        return islice((row for page in pages for row in page.entries), count)


SECRETS_PATH = "environment-secrets"


class SecretsClient(Section):
    """Secrets by scope: `personal` (on the wire `user`) and `workspace`."""

    def page(self, *, scope: str = "all", limit: int = 50, offset: int = 0) -> SecretPage:
        params: Params = {"scope": WIRE_SCOPE[scope], "limit": limit, "offset": offset}
        page = self._http.read(SecretPage, "GET", SECRETS_PATH, params=params)
        rows = [row.for_people() for row in page.environment_secrets]
        return page.model_copy(update={"environment_secrets": rows})

    def all(self, *, scope: str = "all") -> list[SecretRow]:
        pages = self._http.pages(SecretPage, SECRETS_PATH, params={"scope": WIRE_SCOPE[scope]})
        return [row.for_people() for page in pages for row in page.environment_secrets]

    def set(self, name: str, value: str, *, scope: str) -> SecretRow:
        body = NewSecret(name=name, value=value, scope=WIRE_SCOPE[scope])
        return self._http.read(SecretRow, "POST", SECRETS_PATH, json=body).for_people()

    def delete(self, name: str, *, scope: str) -> None:
        self._http.call("DELETE", SECRETS_PATH, json=SecretName(name=name, scope=WIRE_SCOPE[scope]))


WORKERS_PATH = "workers"


class Workers(Section):
    def all(self) -> list[WorkerRow]:
        return self._http.read(WorkerList, "GET", WORKERS_PATH, scoped=False).workers

    def drain(self, name: str) -> None:
        self._http.call("POST", f"{WORKERS_PATH}/{quote(name, safe='')}/drain", json={}, scoped=False)

    def remove(self, name: str) -> int:
        return self._http.read(WorkerRemoved, "DELETE", f"{WORKERS_PATH}/{quote(name, safe='')}", scoped=False).released
