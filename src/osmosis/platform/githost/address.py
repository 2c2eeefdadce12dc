"""What a git client may ask for: one repository and one of two services, nothing else.

Parses names and the `Authorization` header; looks nothing up and touches no file.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from typing import Literal

from osmosis.errors import AuthRequired, Forbidden, NotFound

Service = Literal["git-upload-pack", "git-receive-pack"]

UPLOAD: Service = "git-upload-pack"
RECEIVE: Service = "git-receive-pack"
_SEGMENT = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$")


@dataclass(frozen=True, slots=True)
class GitAddress:
    """One repository, by the name people see."""

    owner: str
    name: str
    """Without `.git`."""

    @property
    def full_name(self) -> str:
        return f"{self.owner}/{self.name}"


def parse_address(owner: str, name: str) -> GitAddress:
    """The repository named by two path segments; `.git` is optional. NotFound for anything that is not a name."""
    short = name[:-4] if name.endswith(".git") else name
    if not _SEGMENT.fullmatch(owner) or not _SEGMENT.fullmatch(short):
        raise NotFound("no such repository", hint="the path must be /git/<owner>/<repository>.git")
    return GitAddress(owner.lower(), short.lower())


def parse_service(value: str | None) -> Service:
    """The `service` of `info/refs`. Forbidden without one: the dumb protocol would serve files."""
    if value == UPLOAD:
        return UPLOAD
    if value == RECEIVE:
        return RECEIVE
    raise Forbidden(
        "only git-upload-pack and git-receive-pack are served here",
        hint="use a git client that speaks smart HTTP (git 1.6.6 or newer)",
    )


def parse_credential(header: str | None) -> str:
    """The platform token in an `Authorization` header: `Bearer <token>`, or Basic with the token as password.

    A Basic header whose password is empty carries the token as user name, as some git tools send it.
    AuthRequired when there is none or it cannot be read.
    """
    if not header:
        raise AuthRequired("this repository requires a login", hint="run `osmosis login`, then push again")
    scheme, _, rest = header.strip().partition(" ")
    rest = rest.strip()
    token = ""
    if scheme.lower() == "bearer":
        token = rest
    elif scheme.lower() == "basic":
        token = _basic_token(rest)
    if not token:
        raise AuthRequired(
            "the Authorization header has no token", hint="use Basic authentication with the token as the password"
        )
    return token


def _basic_token(encoded: str) -> str:
    try:
        user, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return ""
    return password or user
