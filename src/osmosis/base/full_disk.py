"""Whether something failed because a disk is full (or a quota, or the limit of a file's size), however deep it was
wrapped: then a person is told that, and where, and nobody reports a bug."""

from __future__ import annotations

import errno

from osmosis.errors import DiskFull

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_DATABASES = ("database or disk is full", "no space left on device", "could not extend file")
"""What SQLite and PostgreSQL say."""


def full_disk(problem: BaseException, *, where: str) -> DiskFull | None:
    """The error to show instead; None when it was something else. `where` is whose disk it is."""
    seen: BaseException | None = problem
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in FULL:
            path = next((str(name) for name in (seen.filename2, seen.filename) if name), "")
            return _said(where, f" ({path})" if path else "")
        database = getattr(seen, "orig", None)
        if isinstance(database, Exception) and any(words in str(database).lower() for words in _DATABASES):
            return _said(where, " (its database could not write)")
        seen = seen.__cause__ or seen.__context__
    return None


def _said(where: str, what: str) -> DiskFull:
    return DiskFull(f"the disk of {where} is full{what}", hint="free some space there, then do it again: df -h")
