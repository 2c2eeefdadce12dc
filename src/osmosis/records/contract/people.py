"""People: the members of a workspace with their roles, and everybody a platform knows."""

from __future__ import annotations

from pydantic import Field

from osmosis.records.policy import Role

from .body import Body, Moment, RequestBody


class NewMember(RequestBody):
    """`POST members`: somebody joins the workspace; an address that nobody has here waits for its person."""

    person: str = Field(min_length=1, max_length=320)
    """A handle or an e-mail address."""
    role: Role = "member"


class MemberRole(RequestBody):
    """`PUT members/{person}`."""

    role: Role


class MemberRow(Body):
    """Somebody who belongs to a workspace, or is invited to."""

    handle: str | None = None
    """None for somebody who has no account yet."""
    name: str | None = None
    email: str | None = None
    role: str
    invited: bool = False
    """Waits for an account with this address."""
    since: Moment | None = None


class MemberList(Body):
    members: list[MemberRow] = Field(default_factory=list)


class NewPerson(RequestBody):
    """`POST users`."""

    handle: str = Field(min_length=1, max_length=63, pattern=r"^[a-z0-9][a-z0-9-]*$")
    email: str = Field("", max_length=320)
    """Empty: `handle@localhost`."""
    name: str = Field("", max_length=200)
    operator: bool = False
    """Whether they run the platform, too."""


class PersonRow(Body):
    """Somebody this platform knows."""

    id: str
    handle: str
    name: str
    email: str
    operator: bool = False
    created_at: Moment | None = None
    last_used_at: Moment | None = None
    """When one of their tokens was last used."""
    workspaces: dict[str, str] = Field(default_factory=dict)
    """Name of each of their workspaces, and their role there."""


class PersonList(Body):
    users: list[PersonRow] = Field(default_factory=list)


class WantedLink(RequestBody):
    """`POST users/{handle}/link`."""

    hours: int = Field(24, ge=1, le=24 * 7)
