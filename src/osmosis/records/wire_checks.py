"""What every message of the rollout protocol has to have right, whatever its generation: ids, addresses, keys. Each
check raises `ValueError` with a sentence.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

_SAFE_ID = re.compile(r"^(?!\.{1,2}$)[A-Za-z0-9._:@+=-]{1,256}\Z")


def check_rollout_id(value: str) -> str:
    """A rollout id is one path segment, so it can never leave a folder."""
    if not _SAFE_ID.match(value):
        raise ValueError("rollout_id must be one path segment of 1 to 256 letters, digits and . _ : @ + = -")
    return value


def check_url(name: str, value: str, bearer: str | None) -> str:
    """A URL that a message can be posted to, with this bearer: whatever is wrong with it is said before the rollout
    runs, not when its result is to be delivered."""
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError as exc:
        raise ValueError(f"{name} is not a URL: {exc}") from exc
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{name} must be an http or https URL with a host")
    if bearer and "@" in parts.netloc:
        raise ValueError(f"{name} has a user name in it, and there is a key too: only one of them can be sent")
    return value


def check_bearer(value: str | None) -> str | None:
    """A key that fits into one header line."""
    if value is not None and any(ord(one) < 32 or ord(one) == 127 for one in value):
        raise ValueError("a key has no line breaks or other control characters")
    return value


def check_id(value: str) -> str:
    """Generation 0.2 takes any rollout id that is not blank."""
    if not value.strip():
        raise ValueError("rollout_id must not be blank")
    return value
