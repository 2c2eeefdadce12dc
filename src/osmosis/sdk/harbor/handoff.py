"""Hand a rollout's endpoint, key and request to Harbor's agent object without writing them to Harbor's files."""

import secrets
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from osmosis.base.jsonable import JsonObject
from osmosis.base.net import is_loopback
from osmosis.records.run.rollout import Message

URL_VARIABLE = "OSMOSIS_CHAT_COMPLETIONS_URL"
KEY_VARIABLE = "OSMOSIS_API_KEY"
ID_VARIABLE = "OSMOSIS_ROLLOUT_ID"


@dataclass(frozen=True, slots=True)
class Endpoint:
    url: str
    key: str
    rollout_id: str
    model_host: str | None = None  # name of this machine inside a sandbox, when it cannot reach its loopback

    @property
    def inside_url(self) -> str:
        parts = urlsplit(self.url)
        if self.model_host is None or not (is_loopback(parts.hostname) or parts.hostname == "0.0.0.0"):
            return self.url
        port = f":{parts.port}" if parts.port else ""
        return urlunsplit(parts._replace(netloc=f"{self.model_host}{port}"))

    def environment(self, *, native: bool) -> dict[str, str]:
        variables = {URL_VARIABLE: self.inside_url, KEY_VARIABLE: self.key, ID_VARIABLE: self.rollout_id}
        if native:
            variables |= {
                "OPENAI_BASE_URL": self.inside_url,
                "OPENAI_API_BASE": self.inside_url,
                "OPENAI_API_KEY": self.key,
            }
        # Some clients take an empty key for a mistake of their own; a missing one they name.
        return {name: value for name, value in variables.items() if value}


@dataclass(frozen=True, slots=True)
class Delivery:
    sdk: Path
    sdk_id: str
    code: Path | None
    python_paths: tuple[str, ...]


@dataclass(slots=True)
class Ticket:
    endpoint: Endpoint
    messages: list[Message] = field(default_factory=list)
    instruction: str = ""
    request: JsonObject = field(default_factory=dict)
    delivery: Delivery | None = None
    native: JsonObject = field(default_factory=dict)
    id: str = field(default_factory=lambda: secrets.token_hex(8))


_OPEN: dict[str, Ticket] = {}


def open_ticket(ticket: Ticket) -> str:
    _OPEN[ticket.id] = ticket
    return ticket.id


def find_ticket(ticket_id: str) -> Ticket:
    try:
        return _OPEN[ticket_id]
    except KeyError:
        raise LookupError(
            "this trial was made by HarborBackend for one rollout, which has ended: send the rollout again"
        ) from None


def close_ticket(ticket_id: str) -> None:
    _OPEN.pop(ticket_id, None)
