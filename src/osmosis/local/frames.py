"""What a run and its worker processes say to each other: a kind of one byte, a length, a payload.

Both ends are ours and start together, so nothing here is versioned. The payload of a task is a pickle: it goes from the
run to a process that it started itself, and to nobody else.
"""

from __future__ import annotations

import asyncio
import struct

HEAD = struct.Struct(">cI")

REQUEST = b"Q"
"""To the worker, first: the pickled request, and the folder for traces."""
TASK = b"T"
"""A pickled `(index, data, line, content_hash, key, attempt, rollout_id, step)`."""
CANCEL = b"C"
"""The rollout id of a task that nobody waits for any more."""
END = b"X"
"""Nothing more will come."""
READY = b"U"
"""From the worker: everything is loaded."""
REFUSED = b"E"
"""Why it cannot start, as text."""
DONE = b"D"
"""A finished rollout, as a journal line."""
SAY = b"S"
"""A line for the person who watches."""
ANSWERED = b"L"
"""Seconds of an answered model call, as text, for a limit that adapts."""
LIMITED = b"R"
"""Seconds of a rate limit, as text."""
FILES = b"O"
"""The pickled files that code opened or imported since the last time."""


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    return HEAD.pack(kind, len(payload)) + payload


async def read_frame(stream: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The next one; raises `asyncio.IncompleteReadError` when the other end is gone."""
    kind, length = HEAD.unpack(await stream.readexactly(HEAD.size))
    return kind, await stream.readexactly(length)
