"""Rollout servers that people run elsewhere: what `osmosis serve` says of itself, and how they are listed."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from osmosis.base.json_types import JsonObject

from .body import Body, Moment, Page, RequestBody


class NewServer(RequestBody):
    """`POST rollout-server/register`."""

    host: str
    port: int
    agent_loop_name: str
    api_key: str | None = Field(None, repr=False)


class RegisteredServer(Body):
    id: str
    status: str
    health_check_result: JsonObject
    """`{server_info}` of a server that answered, else `{error}`."""


class ServerStatus(Body):
    """The answer to a server's heartbeat."""

    id: str
    status: str


class ServerRow(Body):
    """A server without its key."""

    id: str
    agent_loop_name: str
    host: str
    port: int
    status: str
    """`healthy`, `unhealthy`, or `gone` after a silence."""
    error: str | None = None
    has_api_key: bool
    scope: str
    """`workspace` or `user`."""
    owner_name: str | None = None
    last_seen: Moment
    created_at: Moment


class ServerPage(Page):
    rollout_servers: list[ServerRow] = Field(default_factory=list)

    @property
    def rows(self) -> Sequence[ServerRow]:
        return self.rollout_servers
