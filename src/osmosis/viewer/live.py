"""Server-sent events for pages that follow something: built once per moment however many look, never in a hurry.
A page has one stream, and an event has everything that changes on it, from one read: no two of its figures disagree.

Knows nothing of runs: it is given a function that builds a piece of HTML and says whether it is final. What takes much
work to build is built less often; a connection ends by itself after a while, and the browser opens the next.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from anyio.to_thread import run_sync

from osmosis.errors import OsmosisError

EVERY_S = 1.0
QUIET_S = 15.0
"""A connection says at least this often that it is there."""
LONGEST_S = 1800.0
MAX_OPEN = 200
CROWDED_S = 30
"""A page asks again after so long where too many are open to keep a connection for it."""
END = b"event: end\ndata: over\n\n"
SHARE = 4.0
"""Waiting takes at least this many times as long as the work of building."""
PATIENCE = 5
"""Looks that may fail in a row before a stream ends."""
LONGEST_PAUSE_S = 10.0
"""A page is never further behind than this, however much work it is."""

log = logging.getLogger(__name__)

Build = Callable[[], tuple[str, bool]]


@dataclass(slots=True)
class _Piece:
    """What was built last for one subject."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    text: str = ""
    final: bool = False
    built_at: float = 0.0
    work_s: float = 0.0
    """Of its thread's CPU: one build that waited, for a lock or a busy machine, slows no later one down."""
    readers: int = 0

    @property
    def pause_s(self) -> float:
        """Until it is built again."""
        return max(EVERY_S, min(SHARE * self.work_s, LONGEST_PAUSE_S))


class LivePages:
    """All open event streams of one platform process."""

    def __init__(self) -> None:
        self.open = 0
        self.stopping = False
        """Set when the process ends: every stream ends with it."""
        self._pieces: dict[str, _Piece] = {}

    def stream(self, subject: str, build: Build) -> AsyncIterator[bytes]:
        """The events of one page. When too many are open it is one event, and the browser asks again after a while."""
        return self._events(subject, build) if self.open < MAX_OPEN else self._single(subject, build)

    async def _single(self, subject: str, build: Build) -> AsyncIterator[bytes]:
        yield b"retry: %d\n\n" % (1000 * CROWDED_S)
        text, final = await _current(self._pieces.get(subject) or _Piece(), build)
        yield as_event(text) + (END if final else b"")

    async def _events(self, subject: str, build: Build) -> AsyncIterator[bytes]:
        self.open += 1
        piece = self._pieces.setdefault(subject, _Piece())
        piece.readers += 1
        begun = said = time.monotonic()
        last: str | None = None
        failed = 0
        try:
            yield b"retry: 2000\n\n"
            while time.monotonic() - begun < LONGEST_S and not self.stopping:
                try:
                    text, final = await _current(piece, build)
                except OsmosisError:
                    raise  # what is looked at is not there, and the next look would find no more
                except Exception as error:
                    # A page that stands still for one bad look is worse than one that is late.
                    failed += 1
                    if failed > PATIENCE:
                        raise
                    log.warning("a look at %s failed: %s: %s", subject.partition("?")[0], type(error).__name__, error)
                    await asyncio.sleep(piece.pause_s)
                    continue
                failed = 0
                if text != last:
                    last, said = text, time.monotonic()
                    yield as_event(text)
                if final:
                    yield END
                    return
                if time.monotonic() - said > QUIET_S:
                    said = time.monotonic()
                    yield b": still here\n\n"
                await asyncio.sleep(piece.pause_s)
        finally:
            self.open -= 1
            piece.readers -= 1
            if not piece.readers:
                self._pieces.pop(subject, None)


async def _current(piece: _Piece, build: Build) -> tuple[str, bool]:
    """The piece as it is now, built by the first request that needs it."""
    async with piece.lock:
        if time.monotonic() - piece.built_at >= EVERY_S / 2 or not piece.built_at:
            (piece.text, piece.final), piece.work_s = await run_sync(_worked, build)
            piece.built_at = time.monotonic()
        return piece.text, piece.final


def _worked(build: Build) -> tuple[tuple[str, bool], float]:
    """What was built, and the seconds of CPU that it took."""
    begun = time.thread_time()
    return build(), time.thread_time() - begun


def as_event(text: str) -> bytes:
    """HTML as one server-sent event."""
    return "".join(f"data: {line}\n" for line in text.splitlines()).encode() + b"\n"
