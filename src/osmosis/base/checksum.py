"""The SHA-256 of a file, read in blocks: what sender and receiver compare. Knows nothing of what is in it."""

from __future__ import annotations

import hashlib
from pathlib import Path

_BLOCK = 1 << 20


def file_sha256(path: Path) -> str:
    """In hexadecimal. Raises OSError as reading does."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
