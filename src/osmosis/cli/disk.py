"""What the machine refuses (no permission, a read-only or full disk) as a known error: it is no bug of ours.

Only judges exceptions that nothing below has explained; says which file or folder, and what to look at.
"""

from __future__ import annotations

import errno
import shlex
from pathlib import Path

from ..errors import OsmosisError, ValidationError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_CLOSED = {errno.EACCES, errno.EPERM, errno.EROFS}


def refused_by_machine(error: OSError) -> OsmosisError | None:
    """The error to show; None for one that says nothing about the machine."""
    if error.errno not in _FULL | _CLOSED or isinstance(error, ConnectionError):
        return None
    why = (error.strerror or "refused").lower()
    # Of two names (a copy, a rename) the second is the one that is written.
    path = next((name for name in (error.filename2, error.filename) if isinstance(name, str)), None)
    if path is None:
        return (
            ValidationError(f"cannot write: {why}", hint="df -h . shows what is free") if error.errno in _FULL else None
        )
    folder = next((p for p in Path(path).parents if p.is_dir()), Path("/"))
    look = "df -h" if error.errno in _FULL else "ls -ld"
    return ValidationError(f"cannot use {path}: {why}", hint=f"{look} {shlex.quote(str(folder))}", path=path)
