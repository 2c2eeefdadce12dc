"""Who may what: the members of a workspace, the people of a platform, and the log of what they changed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from urllib.parse import quote

from osmosis.records.contract.accounts import BrowserLink
from osmosis.records.contract.audit_log import AuditPage, AuditRow
from osmosis.records.contract.people import (
    MemberList,
    MemberRole,
    MemberRow,
    NewMember,
    NewPerson,
    PersonList,
    PersonRow,
    WantedLink,
)
from osmosis.records.contract.quota import Quota, QuotaUse
from osmosis.records.policy import Role

from .http import Http


class AccessClient:
    """The three of them."""

    def __init__(self, http: Http) -> None:
        self._http = http
        self.members = Members(http)
        self.people = People(http)
        self.audit = Audit(http)

    def quota(self) -> QuotaUse:
        """What the workspace has, and may have."""
        return self._http.read(QuotaUse, "GET", "quota")

    def set_quota(self, workspace: str, wish: Quota) -> QuotaUse:
        """Set what is given, 0 for no limit; for whoever runs the platform."""
        path = f"workspaces/{quote(workspace, safe='')}/quota"
        given = wish.model_dump(exclude_none=True)
        return self._http.read(QuotaUse, "PUT", path, json=given, scoped=False)


class Members:
    """The members of the workspace that the client speaks for."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def list(self) -> list[MemberRow]:
        return self._http.read(MemberList, "GET", "members").members

    def invite(self, person: str, role: Role) -> MemberRow:
        return self._http.read(MemberRow, "POST", "members", json=NewMember(person=person, role=role))

    def change(self, person: str, role: Role) -> MemberRow:
        return self._http.read(MemberRow, "PUT", f"members/{quote(person, safe='')}", json=MemberRole(role=role))

    def remove(self, person: str) -> None:
        self._http.call("DELETE", f"members/{quote(person, safe='')}")


class People:
    """Everybody the platform knows; for whoever runs it."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def list(self) -> list[PersonRow]:
        return self._http.read(PersonList, "GET", "users", scoped=False).users

    def add(self, person: NewPerson) -> PersonRow:
        return self._http.read(PersonRow, "POST", "users", json=person, scoped=False)

    def remove(self, handle: str, heir: str | None = None) -> None:
        """`heir` becomes the owner of what they own alone."""
        self._http.call("DELETE", f"users/{quote(handle, safe='')}", params={"heir": heir}, scoped=False)

    def link(self, handle: str, hours: int) -> BrowserLink:
        """An address that logs this person's browser in once."""
        path = f"users/{quote(handle, safe='')}/link"
        return self._http.read(BrowserLink, "POST", path, json=WantedLink(hours=hours), scoped=False)

    def unlink(self, handle: str) -> None:
        """Forget which accounts at the sign-in provider are theirs."""
        self._http.call("DELETE", f"users/{quote(handle, safe='')}/identities", scoped=False)


class Audit:
    """What was changed, by whom, newest first."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def entries(self, *, count: int | None, everywhere: bool, action: str, actor: str) -> Iterator[AuditRow]:
        """The newest `count` (None: all) of the workspace, or of the whole platform."""
        path = "platform/audit" if everywhere else "audit"
        pages = self._http.pages(AuditPage, path, params={"action": action, "actor": actor})
        return islice((row for page in pages for row in page.entries), count)
