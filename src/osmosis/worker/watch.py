"""How the jobs of an executor are: asked at once on this machine, and in a thread of its own of everything elsewhere.

A scheduler may take seconds to answer, or not answer at all: a round of the worker never waits for one. What was seen
last is what it says meanwhile.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from osmosis.errors import OsmosisError

from .executors.executor import Executor, Handle, JobState

log = logging.getLogger("osmosis.worker")

POLL_S = 5.0
"""How often something elsewhere is asked, in one call for all jobs."""
CLOSE_S = 60.0
"""How long a worker that ends waits for what it has begun to say elsewhere."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A job, as it was seen."""

    state: JobState
    words: str = ""
    """The end of what it printed, once it is gone."""


ALIVE = Seen(JobState(alive=True))


class Watch:
    """`do` and `look` are for one thread, that of the worker's rounds."""

    def __init__(self, executor: Executor, news: threading.Event, *, every_s: float = POLL_S) -> None:
        """`news` is set when a round has something new to say."""
        self._executor = executor
        self._news = news
        self._every_s = every_s
        self._wanted: dict[str, Handle] = {}
        self._seen: dict[str, Seen] = {}
        self._todo: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def do(self, action: Callable[[], object]) -> None:
        """Now; in its turn where that can take long."""
        if not self._executor.remote:
            action()
            return
        self._begin()
        self._todo.put(action)

    def look(self, handles: Mapping[str, Handle]) -> dict[str, Seen]:
        """How these jobs are; one that was not seen yet lives."""
        if not self._executor.remote:
            return self._ask(handles)
        self._wanted = dict(handles)
        if handles:
            self._begin()
        return {key: self._seen.get(key, ALIVE) for key in handles}

    def close(self) -> None:
        """When everything that was to be done is."""
        if self._thread is not None:
            self._todo.put(None)
            self._thread.join(timeout=CLOSE_S)
            self._thread = None

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="executor", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        next_look = time.monotonic()
        while True:
            try:
                action = self._todo.get(timeout=max(0.01, next_look - time.monotonic()))
            except queue.Empty:
                self._guarded(self._look)
                next_look = time.monotonic() + self._every_s
                continue
            if action is None:
                return
            self._guarded(action)
            self._news.set()

    def _look(self) -> None:
        seen = self._ask(self._wanted)
        changed = any(self._seen.get(key, ALIVE) != one for key, one in seen.items())
        self._seen = seen
        if changed:
            self._news.set()

    def _ask(self, handles: Mapping[str, Handle]) -> dict[str, Seen]:
        states = self._executor.poll(list(handles.values())) if handles else []
        return {
            key: Seen(state, "" if state.alive else self._executor.words(handles[key]))
            for key, state in zip(handles, states, strict=True)
        }

    def _guarded(self, action: Callable[[], object]) -> None:
        try:
            action()
        except OsmosisError as problem:
            log.warning("%s", problem)
        except Exception:
            log.exception("%s: what was to be done there failed", self._executor.name)
