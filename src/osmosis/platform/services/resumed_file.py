"""A file that comes in pieces over several requests: a draft keeps what came before a cut, and the rest is added."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from osmosis.errors import Conflict, TooLarge


async def add(draft: Path, stream: AsyncIterator[bytes], *, path: str, size: int, offset: int) -> bool:
    """Adds what comes to the draft from `offset` on; whether all `size` bytes are there now. `path` is what messages
    call it. Conflict when the draft ends elsewhere, TooLarge for more than was announced."""
    if offset and (not draft.exists() or draft.stat().st_size != offset):
        raise Conflict(f"{path}: what was sent before does not end at {offset}", hint="ask how much is there")
    written = offset
    with draft.open("ab" if offset else "wb") as out:
        async for piece in stream:
            written += len(piece)
            if written > size:
                raise TooLarge(f"{path} is larger than announced ({size} bytes)")
            out.write(piece)
    return written == size
