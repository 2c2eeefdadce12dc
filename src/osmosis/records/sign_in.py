"""Signing in through an OpenID Connect provider: what a platform is told about it, and what it says of a person.

Only a platform process imports this module: reading settings costs too much at the start of a command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr, field_validator, model_validator

from osmosis.base.net import host_of, is_http, is_loopback
from osmosis.base.variables import Settings, Variable


class OpenIdSettings(Settings):
    """One provider, by `OSMOSIS_OIDC_*` variables. `domains` and `groups` say which unknown people get an account."""

    issuer: Annotated[str, Variable("OSMOSIS_OIDC_ISSUER")]
    """URL below which `/.well-known/openid-configuration` is; https, or http on this machine."""
    client_id: Annotated[str, Variable("OSMOSIS_OIDC_CLIENT_ID")] = Field(min_length=1)
    client_secret: Annotated[SecretStr, Variable("OSMOSIS_OIDC_CLIENT_SECRET")] = SecretStr("")
    """Empty, without a file too: a public client, which PKCE alone protects."""
    client_secret_file: Annotated[Path | None, Variable("OSMOSIS_OIDC_CLIENT_SECRET_FILE")] = None
    label: Annotated[str, Variable("OSMOSIS_OIDC_NAME")] = ""
    """What the button on the login page calls the provider; empty: its host."""
    scopes: Annotated[tuple[str, ...], Variable("OSMOSIS_OIDC_SCOPES")] = ("openid", "email", "profile")
    """What is asked for; a provider that tells groups by a scope of its own needs that here."""
    domains: Annotated[tuple[str, ...], Variable("OSMOSIS_OIDC_DOMAINS")] = ()
    """Who has a verified address in one of these gets an account, lower-case: `example.com`, not `a.example.com`."""
    groups: Annotated[tuple[str, ...], Variable("OSMOSIS_OIDC_GROUPS")] = ()
    """Who is in one of these gets an account; with `domains`, too, both are needed."""
    groups_claim: Annotated[str, Variable("OSMOSIS_OIDC_GROUPS_CLAIM")] = "groups"

    @field_validator("scopes", "domains", "groups", mode="before")
    @classmethod
    def _words(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        return tuple(word.strip() for word in value.split(",") if word.strip())

    @field_validator("scopes", mode="before")
    @classmethod
    def _scopes(cls, value: object) -> object:
        return ",".join(value.split()) if isinstance(value, str) else value

    @field_validator("scopes")
    @classmethod
    def _openid(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return value if "openid" in value else ("openid", *value)

    @field_validator("domains")
    @classmethod
    def _domains(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name.lower().lstrip("@") for name in value)

    @field_validator("issuer")
    @classmethod
    def _safe(cls, value: str) -> str:
        if not is_http(value) or not (value.startswith("https://") or is_loopback(value)):
            raise ValueError("must be an https:// URL, such as https://login.example.com")
        return value

    @model_validator(mode="after")
    def _one_secret(self) -> OpenIdSettings:
        if self.client_secret_file is not None:
            if self.client_secret.get_secret_value():
                raise ValueError("give OSMOSIS_OIDC_CLIENT_SECRET or OSMOSIS_OIDC_CLIENT_SECRET_FILE, not both")
            if not self.secret:
                raise ValueError(f"the file of OSMOSIS_OIDC_CLIENT_SECRET_FILE is empty: {self.client_secret_file}")
        return self

    @property
    def secret(self) -> str:
        """The client's secret, empty for a public client. ValueError for a file that cannot be read."""
        if self.client_secret_file is None:
            return self.client_secret.get_secret_value()
        try:
            return self.client_secret_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"OSMOSIS_OIDC_CLIENT_SECRET_FILE cannot be read: {error}") from None

    @property
    def name(self) -> str:
        """What people call the provider."""
        return self.label or host_of(self.issuer)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> OpenIdSettings | None:
        """None where no issuer is set: people sign in with links and tokens alone."""
        return cls(environ=dict(environ)) if environ.get("OSMOSIS_OIDC_ISSUER") else None


@dataclass(frozen=True, slots=True)
class Identity:
    """A person as a provider knows them: `issuer` and `subject` together never mean another one."""

    issuer: str
    subject: str
    email: str
    """Lower-case; empty where the provider tells none."""
    verified: bool
    """Whether the provider says that the address is theirs."""
    name: str
    handle: str
    """What the provider calls them in short; empty where it does not."""
    groups: frozenset[str] = frozenset()

    @property
    def domain(self) -> str:
        return self.email.rpartition("@")[2]
