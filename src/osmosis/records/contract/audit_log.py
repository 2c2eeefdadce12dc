"""The audit log of a workspace or of the platform: who changed what, when, from where."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from osmosis.base.json_types import JsonObject

from .body import Body, Moment, Page


class AuditRow(Body):
    """One change."""

    id: int
    timestamp: Moment | None = None
    actor: str
    """Handle of the person."""
    token: str = ""
    """Kind and name of the credential."""
    address: str = ""
    """Of the machine that asked."""
    action: str
    """`noun.verb`."""
    target: str = ""
    workspace_id: str | None = None
    details: JsonObject = Field(default_factory=dict)


class AuditPage(Page):
    """`GET audit`, newest first."""

    entries: list[AuditRow] = Field(default_factory=list)

    @property
    def rows(self) -> Sequence[AuditRow]:
        return self.entries
