"""What Harbor's agent object needs and Harbor's files must not have: the rollout's endpoint, bearer and request.

A trial's config, which Harbor writes to disk, names a ticket; the ticket itself stays in this process and is closed
with the rollout.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from osmosis.base.json_types import JsonObject
from osmosis.base.net import is_loopback
from osmosis.records.rollout import Message

URL_VARIABLE = "OSMOSIS_CHAT_COMPLETIONS_URL"
KEY_VARIABLE = "OSMOSIS_API_KEY"
ID_VARIABLE = "OSMOSIS_ROLLOUT_ID"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The rollout's model endpoint."""

    url: str
    key: str
    rollout_id: str
    model_host: str | None = None
    """What a sandbox calls this machine, when it cannot reach its loopback."""

    @property
    def inside_url(self) -> str:
        """The URL as the sandbox reaches it."""
        parts = urlsplit(self.url)
        if self.model_host is None or not (is_loopback(parts.hostname) or parts.hostname == "0.0.0.0"):
            return self.url
        port = f":{parts.port}" if parts.port else ""
        return urlunsplit(parts._replace(netloc=f"{self.model_host}{port}"))

    def environment(self, *, native: bool) -> dict[str, str]:
        """The variables of the agent's commands; a native agent also gets those that OpenAI clients read."""
        found = {URL_VARIABLE: self.inside_url, KEY_VARIABLE: self.key, ID_VARIABLE: self.rollout_id}
        if native:
            found |= {
                "OPENAI_BASE_URL": self.inside_url,
                "OPENAI_API_BASE": self.inside_url,
                "OPENAI_API_KEY": self.key,
            }
        # Some clients take an empty key for a mistake of their own; a missing one they name.
        return {name: value for name, value in found.items() if value}


@dataclass(frozen=True, slots=True)
class Delivery:
    """What is put into the sandbox for a workflow."""

    sdk: Path
    sdk_id: str
    code: Path | None
    """A `tar.gz`; None: the image has the code."""
    python_paths: tuple[str, ...]


@dataclass(slots=True)
class Ticket:
    """One open rollout."""

    endpoint: Endpoint
    messages: list[Message] = field(default_factory=list)
    instruction: str = ""
    request: JsonObject = field(default_factory=dict)
    """For `inside.py`, but for the messages."""
    delivery: Delivery | None = None
    native: JsonObject = field(default_factory=dict)
    """Harbor's own agent: `name` or `import_path`, `model_name`, `kwargs`."""
    id: str = field(default_factory=lambda: secrets.token_hex(8))


_OPEN: dict[str, Ticket] = {}


def open_ticket(ticket: Ticket) -> str:
    """Makes the ticket known; returns its id."""
    _OPEN[ticket.id] = ticket
    return ticket.id


def find_ticket(ticket_id: str) -> Ticket:
    """`LookupError` when the trial is none of this process's rollouts: it cannot be run from its config alone."""
    try:
        return _OPEN[ticket_id]
    except KeyError:
        raise LookupError(
            "this trial was made by HarborBackend for one rollout, which has ended: send the rollout again"
        ) from None


def close_ticket(ticket_id: str) -> None:
    _OPEN.pop(ticket_id, None)
