import time
from collections.abc import Callable, Iterator
from itertools import islice
from urllib.parse import quote

from osmosis.client.http import Params, Section
from osmosis.errors import Conflict, NotFound, OsmosisError, PlatformError
from osmosis.records.api import accounts as account_api, workspaces as workspace_api
from osmosis.records.api.accounts import Role
from osmosis.records.run.source import SyncState

Reporter = Callable[[str], None]

NOT_CONNECTED = ("GIT_REPOSITORY_NOT_CONNECTED", "GIT_SCOPE_REQUIRED", "WORKSPACE_SCOPE_HEADER_ACCESS_DENIED")
BUSY = ("Pending", "Syncing")
POLL_S = 0.5
TIMEOUT_S = 300.0
SECRETS_PATH = "environment-secrets"


class Accounts(Section):
    def authorize(self, device_name: str) -> account_api.DeviceOffer:
        body = account_api.DeviceStart(device_name=device_name)
        return self._read(account_api.DeviceOffer, "POST", "device/authorize", json=body, scoped=False)

    def poll(self, device_code: str) -> account_api.IssuedLogin:
        """Return the login once approved; raise with `authorization_pending` or `slow_down` as the text before."""
        body = account_api.DevicePoll(device_code=device_code)
        return self._read(account_api.IssuedLogin, "POST", "device/token", json=body, scoped=False)

    def bootstrap(self, device_name: str) -> account_api.IssuedLogin:
        body = account_api.DeviceStart(device_name=device_name)
        return self._read(account_api.IssuedLogin, "POST", "bootstrap", json=body, scoped=False)

    def verify(self) -> account_api.Verified:
        return self._read(account_api.Verified, "GET", "verify")

    def browser_link(self) -> account_api.BrowserLink:
        return self._read(account_api.BrowserLink, "POST", "browser-login", json={}, scoped=False)

    def tokens(self) -> list[account_api.TokenRow]:
        return self._read(account_api.TokenList, "GET", "tokens", scoped=False).tokens

    def make_token(self, wish: account_api.NewToken) -> account_api.IssuedLogin:
        return self._read(account_api.IssuedLogin, "POST", "tokens", json=wish, scoped=False)

    def revoke(self, token_id: str, *, logout: bool = False) -> None:
        """Revoke a token and its descendants; at a `logout`, tokens created by name stay."""
        path = f"tokens/{quote(token_id, safe='')}"
        self._call("DELETE", path, params={"logout": "true" if logout else None}, scoped=False, timeout=5.0)


class Workspaces(Section):
    def list(self) -> list[account_api.WorkspaceRow]:
        return self._read(account_api.WorkspaceList, "GET", "workspaces", scoped=False).workspaces

    def find(self, name: str) -> account_api.WorkspaceRow | None:
        return next((row for row in self.list() if row.name == name), None)

    def create(self, name: str) -> account_api.WorkspaceRow:
        return self._read(
            account_api.WorkspaceRow, "POST", "workspaces", json=account_api.NewWorkspace(name=name), scoped=False
        )

    def rename(self, name: str, new: str) -> account_api.WorkspaceRow:
        path = f"workspaces/{quote(name, safe='')}"
        return self._read(
            account_api.WorkspaceRow, "PATCH", path, json=account_api.NewWorkspace(name=new), scoped=False
        )

    def delete(self, name: str) -> None:
        self._call("DELETE", f"workspaces/{quote(name, safe='')}", scoped=False)

    def webhook(self) -> workspace_api.WebhookAddress:
        return self._read(workspace_api.WebhookAddress, "GET", "webhook")

    def connect(self, name: str, repository_url: str, secret: str | None = None) -> account_api.WorkspaceRow:
        path = f"workspaces/{quote(name, safe='')}/connect"
        body = account_api.ConnectRepository(repository_url=repository_url, secret=secret)
        return self._read(account_api.WorkspaceRow, "POST", path, json=body, scoped=False)

    def quota(self) -> account_api.QuotaUse:
        return self._read(account_api.QuotaUse, "GET", "quota")

    def set_quota(self, workspace: str, wish: account_api.Quota) -> account_api.QuotaUse:
        path = f"workspaces/{quote(workspace, safe='')}/quota"
        return self._read(account_api.QuotaUse, "PUT", path, json=wish.model_dump(exclude_none=True), scoped=False)


class Members(Section):
    def list(self) -> list[account_api.MemberRow]:
        return self._read(account_api.MemberList, "GET", "members").members

    def invite(self, person: str, role: Role) -> account_api.MemberRow:
        return self._read(
            account_api.MemberRow, "POST", "members", json=account_api.NewMember(person=person, role=role)
        )

    def change(self, person: str, role: Role) -> account_api.MemberRow:
        return self._read(
            account_api.MemberRow, "PUT", f"members/{quote(person, safe='')}", json=account_api.MemberRole(role=role)
        )

    def remove(self, person: str) -> None:
        self._call("DELETE", f"members/{quote(person, safe='')}")


class People(Section):
    def list(self) -> list[account_api.PersonRow]:
        return self._read(account_api.PersonList, "GET", "users", scoped=False).users

    def add(self, person: account_api.NewPerson) -> account_api.PersonRow:
        return self._read(account_api.PersonRow, "POST", "users", json=person, scoped=False)

    def remove(self, handle: str, heir: str | None = None) -> None:
        self._call("DELETE", f"users/{quote(handle, safe='')}", params={"heir": heir}, scoped=False)

    def link(self, handle: str, hours: int) -> account_api.BrowserLink:
        path = f"users/{quote(handle, safe='')}/link"
        return self._read(account_api.BrowserLink, "POST", path, json=account_api.WantedLink(hours=hours), scoped=False)

    def unlink(self, handle: str) -> None:
        self._call("DELETE", f"users/{quote(handle, safe='')}/identities", scoped=False)


class Audit(Section):
    def entries(
        self, *, count: int | None, everywhere: bool, action: str, actor: str
    ) -> Iterator[account_api.AuditRow]:
        """Yield the newest `count` entries (None: all) of the workspace, or of the whole platform."""
        path = "platform/audit" if everywhere else "audit"
        pages = self._pages(account_api.AuditPage, path, params={"action": action, "actor": actor})
        return islice((row for page in pages for row in page.entries), count)


class SecretsClient(Section):
    """Secrets by scope: `personal` (on the wire `user`) and `workspace`."""

    def page(self, *, scope: str = "all", limit: int = 50, offset: int = 0) -> workspace_api.SecretPage:
        params: Params = {"scope": workspace_api.WIRE_SCOPE[scope], "limit": limit, "offset": offset}
        page = self._read(workspace_api.SecretPage, "GET", SECRETS_PATH, params=params)
        rows = [row.for_people() for row in page.environment_secrets]
        return page.model_copy(update={"environment_secrets": rows})

    def all(self, *, scope: str = "all") -> list[workspace_api.SecretRow]:
        pages = self._pages(workspace_api.SecretPage, SECRETS_PATH, params={"scope": workspace_api.WIRE_SCOPE[scope]})
        return [row.for_people() for page in pages for row in page.environment_secrets]

    def set(self, name: str, value: str, *, scope: str) -> workspace_api.SecretRow:
        body = workspace_api.NewSecret(name=name, value=value, scope=workspace_api.WIRE_SCOPE[scope])
        return self._read(workspace_api.SecretRow, "POST", SECRETS_PATH, json=body).for_people()

    def delete(self, name: str, *, scope: str) -> None:
        self._call(
            "DELETE", SECRETS_PATH, json=workspace_api.SecretName(name=name, scope=workspace_api.WIRE_SCOPE[scope])
        )


class Sync(Section):
    def state(self, *, rollouts: bool = False) -> SyncState:
        """Return synced branches and events; an unknown repository is a state too, not an error."""
        try:
            state = self._read(workspace_api.SyncReport, "GET", "sync").state()
        except OsmosisError as error:
            if isinstance(error, NotFound) or error.details.get("platform_code") in NOT_CONNECTED:
                return SyncState(connected=False, error=error.message)
            raise
        if rollouts and state.commit_sha:
            state.rollouts = [row.name for row in self.rollouts()]
        return state

    def start(self) -> workspace_api.SyncStarted:
        return self._read(workspace_api.SyncStarted, "POST", "sync", json={})

    def rollouts(self, *, branch: str | None = None) -> list[workspace_api.SyncedRollout]:
        pages = self._pages(workspace_api.SyncedRolloutPage, "rollouts", params={"branch": branch})
        return [row for page in pages for row in page.rollouts]

    def wait_for(
        self, commit: str, branch: str | None = None, *, timeout_s: float = TIMEOUT_S, report: Reporter = lambda _: None
    ) -> SyncState:
        """Poll until the platform has this commit of the branch (None: the default branch), starting one sync. Raise
        PlatformError when the sync failed or time is over, Conflict when the platform synced another commit."""
        deadline = time.monotonic() + timeout_s
        started, last = False, ""
        while (state := self.state()).synced(branch) != commit:
            if state.status not in BUSY:
                if started and state.status == "Failed":
                    raise _failed(state)
                if started:
                    problem = f"the platform synced {branch or state.default_branch}, but not {commit[:10]}"
                    raise Conflict(problem, hint="git push, then osmosis sync --wait")
                self.start()
                started = True
            status = state.status or "no sync yet"
            if status != last:
                report(status)
                last = status
            if time.monotonic() > deadline:
                hint = "osmosis sync --status; the platform's log says more: osmosis platform logs"
                raise PlatformError(f"the platform has not synced {commit[:10]} after {timeout_s:g} s", hint=hint)
            time.sleep(POLL_S)
        return state

    def wait_until_done(self, *, timeout_s: float = TIMEOUT_S) -> SyncState:
        self.start()
        deadline = time.monotonic() + timeout_s
        while (state := self.state()).status in BUSY:
            if time.monotonic() > deadline:
                raise PlatformError(f"the sync has not finished after {timeout_s:g} s", hint="osmosis sync --status")
            time.sleep(POLL_S)
        if state.status == "Failed":
            raise _failed(state)
        return state


def _failed(state: SyncState) -> PlatformError:
    hint = "osmosis sync --status, then fix the problem and push again"
    return PlatformError(f"the sync failed: {state.error or 'no reason given'}", hint=hint)
