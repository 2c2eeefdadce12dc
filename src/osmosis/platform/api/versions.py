"""How a client's version stands to this platform."""

from __future__ import annotations

import re

OLDEST = (0, 2, 0)
OLDEST_CURRENT = (0, 2, 24)


def version_status(version: str | None) -> tuple[str, str]:
    """`(status, message)`; status is `current`, `deprecated` or `unsupported`. No or an odd version is current."""
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version or "")
    if match is None:
        return "current", ""
    found = tuple(int(part or 0) for part in match.groups())
    if found < OLDEST:
        return "unsupported", f"this platform does not speak with clients of version {version}; the oldest is 0.2"
    if found < OLDEST_CURRENT:
        return "deprecated", f"client {version} is older than 0.2.24; some answers may not fit it"
    return "current", ""
