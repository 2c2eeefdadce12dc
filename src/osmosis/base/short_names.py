"""What somebody means who writes only the beginning of a name, or `latest`."""

from __future__ import annotations

from collections.abc import Sequence

from osmosis.errors import UsageError

LATEST = "latest"
SHORTEST = 3
"""Characters of a name that may stand for all of it."""


def meant(name: str, newest_first: Sequence[str]) -> str | None:
    """The name that this one stands for: itself, the newest for `latest`, or the only one that begins so.

    None when there is none; UsageError names those that a beginning could mean.
    """
    if name in newest_first:
        return name
    if name == LATEST and newest_first:
        return newest_first[0]
    found = sorted(one for one in newest_first if len(name) >= SHORTEST and one.startswith(name))
    if len(found) > 1:
        raise UsageError(f"{name!r} could be {', '.join(found[:8])}", hint="write more of the name")
    return found[0] if found else None
