"""Server-sent events for pages that follow something: built once per moment however many look, never in a hurry.

Knows nothing of runs: it is given a function that builds a piece of HTML and says whether it is final. What takes
long to build is built less often; a connection ends by itself after a while, and the browser opens the next.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from anyio.to_thread import run_sync

from osmosis.errors import RateLimited

EVERY_S = 1.0
QUIET_S = 15.0
"""A connection says at least this often that it is there."""
LONGEST_S = 1800.0
MAX_OPEN = 200
SHARE = 4.0
"""Waiting takes at least this many times as long as building."""

Build = Callable[[], tuple[str, bool]]


@dataclass(slots=True)
class _Piece:
    """What was built last for one subject."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    text: str = ""
    final: bool = False
    built_at: float = 0.0
    took_s: float = 0.0
    readers: int = 0


class LivePages:
    """All open event streams of one platform process."""

    def __init__(self) -> None:
        self.open = 0
        self.stopping = False
        """Set when the process ends: every stream ends with it."""
        self._pieces: dict[str, _Piece] = {}

    def stream(self, subject: str, build: Build) -> AsyncIterator[bytes]:
        """The events of one page. RateLimited at once when too many are open."""
        if self.open >= MAX_OPEN:
            raise RateLimited("too many pages are open", hint="close some and reload", retry_after=30)
        return self._events(subject, build)

    async def _events(self, subject: str, build: Build) -> AsyncIterator[bytes]:
        self.open += 1
        piece = self._pieces.setdefault(subject, _Piece())
        piece.readers += 1
        begun = said = time.monotonic()
        last: str | None = None
        try:
            yield b"retry: 2000\n\n"
            while time.monotonic() - begun < LONGEST_S and not self.stopping:
                text, final = await _current(piece, build)
                if text != last:
                    last, said = text, time.monotonic()
                    yield as_event(text)
                if final:
                    yield b"event: end\ndata: over\n\n"
                    return
                if time.monotonic() - said > QUIET_S:
                    said = time.monotonic()
                    yield b": still here\n\n"
                await asyncio.sleep(max(EVERY_S, SHARE * piece.took_s))
        finally:
            self.open -= 1
            piece.readers -= 1
            if not piece.readers:
                self._pieces.pop(subject, None)


async def _current(piece: _Piece, build: Build) -> tuple[str, bool]:
    """The piece as it is now, built by the first request that needs it."""
    async with piece.lock:
        now = time.monotonic()
        if now - piece.built_at >= EVERY_S / 2 or not piece.built_at:
            piece.text, piece.final = await run_sync(build)
            piece.built_at = time.monotonic()
            piece.took_s = piece.built_at - now
        return piece.text, piece.final


def as_event(text: str) -> bytes:
    """HTML as one server-sent event."""
    return "".join(f"data: {line}\n" for line in text.splitlines()).encode() + b"\n"
