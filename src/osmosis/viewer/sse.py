"""Server-sent events: one build serves all tabs with a subject, an expensive one less often."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from anyio.to_thread import run_sync

from osmosis.errors import OsmosisError

INTERVAL_S = 1.0
KEEPALIVE_S = 15.0
MAX_STREAM_S = 1800.0
MAX_OPEN = 200
RETRY_WHEN_FULL_S = 30
END = b"event: end\ndata: over\n\n"
WORK_SHARE = 4.0
"""A pause is at least this many times as long as the last build's CPU time."""
MAX_FAILURES = 5
MAX_PAUSE_S = 10.0

log = logging.getLogger(__name__)

Build = Callable[[], tuple[str, bool]]


@dataclass(slots=True)
class _Piece:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    text: str = ""
    final: bool = False
    built_at: float = 0.0
    work_s: float = 0.0
    """CPU time of its thread, in seconds: waiting for a lock or a busy machine slows no later build down."""
    readers: int = 0

    @property
    def pause_s(self) -> float:
        return max(INTERVAL_S, min(WORK_SHARE * self.work_s, MAX_PAUSE_S))


class EventStreams:
    def __init__(self) -> None:
        self.open = 0
        self.stopping = False
        self._pieces: dict[str, _Piece] = {}

    def stream(self, subject: str, build: Build) -> AsyncIterator[bytes]:
        """Iterate over the events of one page; with too many open streams it is one event, to be asked for again."""
        return self._events(subject, build) if self.open < MAX_OPEN else self._single(subject, build)

    async def _single(self, subject: str, build: Build) -> AsyncIterator[bytes]:
        yield b"retry: %d\n\n" % (1000 * RETRY_WHEN_FULL_S)
        text, final = await _refresh(self._pieces.get(subject) or _Piece(), build)
        yield format_event(text) + (END if final else b"")

    async def _events(self, subject: str, build: Build) -> AsyncIterator[bytes]:
        self.open += 1
        piece = self._pieces.setdefault(subject, _Piece())
        piece.readers += 1
        started = sent = time.monotonic()
        last: str | None = None
        failures = 0
        try:
            yield b"retry: 2000\n\n"
            while time.monotonic() - started < MAX_STREAM_S and not self.stopping:
                try:
                    text, final = await _refresh(piece, build)
                except OsmosisError:
                    return  # the subject is gone, or the right to see it: the browser asks again, and is told
                except Exception as error:
                    # A page that stops after one failed build is worse than one that is late.
                    failures += 1
                    if failures > MAX_FAILURES:
                        raise
                    name = subject.partition("?")[0]
                    log.warning("a look at %s failed: %s: %s", name, type(error).__name__, error)
                    await asyncio.sleep(piece.pause_s)
                    continue
                failures = 0
                if text != last:
                    last, sent = text, time.monotonic()
                    yield format_event(text)
                if final:
                    yield END
                    return
                if time.monotonic() - sent > KEEPALIVE_S:
                    sent = time.monotonic()
                    yield b": still here\n\n"
                await asyncio.sleep(piece.pause_s)
        finally:
            self.open -= 1
            piece.readers -= 1
            if not piece.readers:
                self._pieces.pop(subject, None)


async def _refresh(piece: _Piece, build: Build) -> tuple[str, bool]:
    async with piece.lock:
        if time.monotonic() - piece.built_at >= INTERVAL_S / 2 or not piece.built_at:
            (piece.text, piece.final), piece.work_s = await run_sync(_measure, build)
            piece.built_at = time.monotonic()
        return piece.text, piece.final


def _measure(build: Build) -> tuple[tuple[str, bool], float]:
    started = time.thread_time()
    return build(), time.thread_time() - started


def format_event(text: str) -> bytes:
    return "".join(f"data: {line}\n" for line in text.splitlines()).encode() + b"\n"
