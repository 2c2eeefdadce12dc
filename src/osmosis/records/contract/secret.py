"""Secrets of a workspace or a person: values go in once and are in no answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from .body import Body, Moment, OrEmpty, Page, RequestBody

WIRE_SCOPE = {"personal": "user", "workspace": "workspace", "all": "all"}
"""What people call a scope, and what the wire calls it."""
_SHOWN_SCOPE = {"user": "personal"}


class NewSecret(RequestBody):
    """`POST environment-secrets`: create or replace."""

    name: str
    value: str = Field(repr=False)
    scope: str = "user"


class SecretName(RequestBody):
    """`DELETE environment-secrets`."""

    name: str
    scope: str = "user"


class SecretRow(Body):
    """A secret without its value."""

    id: str | None = None
    name: str
    scope: str | None = None
    """`user` or `workspace`."""
    created_at: Moment | None = None
    updated_at: Moment | None = None
    creator_name: str | None = None
    updater_name: str | None = None
    last_used_at: Moment | None = None
    last_used_by: str | None = None
    """Name of the run that had it last."""
    platform_url: str | None = None

    def for_people(self) -> SecretRow:
        """The same with the scope as people call it: `personal` or `workspace`."""
        return self.model_copy(update={"scope": _SHOWN_SCOPE.get(self.scope or "", self.scope)})


class SecretPage(Page):
    environment_secrets: Annotated[list[SecretRow], OrEmpty] = Field(default_factory=list)
    platform_url: str | None = None

    @property
    def rows(self) -> Sequence[SecretRow]:
        return self.environment_secrets
