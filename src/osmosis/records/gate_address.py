"""Where the rollout servers of a training run reach the model that is trained, when they are on other machines.

It is a property of the machine that runs the job, so its worker is told: the address it can be reached at, and the one
to listen on, which a proxy with TLS stands in front of. Every call carries the token of its own rollout.
"""

from __future__ import annotations

from pydantic import Field, field_validator

from osmosis.base.net import host_of, is_http, is_loopback
from osmosis.errors import UsageError

from .rules import Table

PORT = "{port}"


class GateAddress(Table):
    """`[gate]` of `worker.toml`."""

    advertise_url: str = Field(default="", examples=["https://gpu-box.example.com/gate/{port}"])
    """URL at which rollout servers elsewhere reach this machine's training jobs; `{port}` is a job's own."""
    listen: str = Field(default="127.0.0.1:0", examples=["127.0.0.1:7577"])
    """host:port that a job listens on for them; port 0: a free one for each job."""
    insecure_http: bool = False
    """Plain http to and from other machines: whoever is in between reads conversations and keys."""

    @field_validator("advertise_url")
    @classmethod
    def _url(cls, value: str) -> str:
        if value and not is_http(value.replace(PORT, "1")):
            raise ValueError("must be an http:// or https:// URL, such as https://gpu-box.example.com/gate/{port}")
        return value.rstrip("/")

    @field_validator("listen")
    @classmethod
    def _place(cls, value: str) -> str:
        host, _, port = value.rpartition(":")
        if not host or not port.isdigit() or int(port) > 65535:
            raise ValueError("must be host:port, such as 127.0.0.1:7577")
        return value

    @property
    def host(self) -> str:
        return host_of(self.listen)

    @property
    def port(self) -> int:
        return int(self.listen.rpartition(":")[2])

    @property
    def template(self) -> str:
        """The advertised URL as one that can be read, whatever the port will be."""
        return self.advertise_url.replace(PORT, "1")

    def refuse(self) -> None:
        """UsageError where nobody could get there, or conversations and tokens would cross a network in the open."""
        if not self.advertise_url and not is_loopback(self.host):
            raise UsageError(
                f"jobs are to listen on {self.listen}, and nobody is told how to get there",
                hint="say --advertise-url https://NAME, at which a proxy with TLS passes on to it",
            )
        if PORT not in self.advertise_url and self.advertise_url and self.port == 0:
            raise UsageError(
                f"{self.advertise_url} stands for one port, and each job listens on a free one",
                hint=f"name it, as in --gate-listen {self.host}:7577, or put {PORT} into the URL",
            )
        self.refuse_plain(self.template)

    def refuse_plain(self, url: str) -> None:
        """UsageError for an address beyond this machine without TLS, unless that is allowed."""
        if url and not self.insecure_http and not url.startswith("https://") and not is_loopback(url):
            raise UsageError(
                f"{url} is plain http: whoever is in between reads conversations and keys",
                hint="put TLS before it and give its https:// address; in a network you trust: --insecure-http",
            )
