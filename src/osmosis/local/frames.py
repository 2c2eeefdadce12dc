"""The messages between a run and its worker processes: a kind of one byte, a length, a payload."""

import asyncio
import struct

HEAD = struct.Struct(">cI")

ORDER = b"Q"
"""To the worker, first: pickled plan, options and folder for traces."""
TASK = b"T"
"""A pickled `(index, data, line, content_hash, key, attempt, rollout_id, step)`."""
CANCEL = b"C"
END = b"X"
READY = b"U"
REFUSED = b"E"
DONE = b"D"
SAY = b"S"
ANSWERED = b"L"
LIMITED = b"R"
FILES = b"O"
BEAT = b"B"
"""The loop goes round; seconds until all that runs now has to have ended, by its time limits, or nothing."""


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    return HEAD.pack(kind, len(payload)) + payload


async def read_frame(stream: asyncio.StreamReader) -> tuple[bytes, bytes]:
    kind, length = HEAD.unpack(await stream.readexactly(HEAD.size))
    return kind, await stream.readexactly(length)
