import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from osmosis.errors import OsmosisError
from osmosis.worker.executors.executor import Executor, Handle, JobState

log = logging.getLogger("osmosis.worker")

POLL_S = 5.0
CLOSE_S = 60.0


ALIVE = JobState(alive=True)


class JobPoller:
    """Use `run` and `poll` from one thread, that of the worker's rounds."""

    def __init__(self, executor: Executor, news: threading.Event, *, every_s: float = POLL_S) -> None:
        self._executor = executor
        self._news = news
        self._every_s = every_s
        self._wanted: dict[str, Handle] = {}
        self._seen: dict[str, JobState] = {}
        self._todo: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def run(self, action: Callable[[], object]) -> None:
        if not self._executor.remote:
            action()
            return
        self._begin()
        self._todo.put(action)

    def poll(self, handles: Mapping[str, Handle]) -> dict[str, JobState]:
        if not self._executor.remote:
            return self._ask(handles)
        self._wanted = dict(handles)
        if handles:
            self._begin()
        return {key: self._seen.get(key, ALIVE) for key in handles}

    def close(self) -> None:
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
        states = self._ask(self._wanted)
        changed = any(self._seen.get(key, ALIVE) != state for key, state in states.items())
        self._seen = states
        if changed:
            self._news.set()

    def _ask(self, handles: Mapping[str, Handle]) -> dict[str, JobState]:
        states = dict(zip(handles, self._executor.poll(list(handles.values())), strict=True)) if handles else {}
        ended = {key: state for key, state in states.items() if not state.alive}
        words = {key: self._executor.read_output(handles[key]) for key in ended}
        return states | {key: replace(state, words=words[key]) for key, state in ended.items()}

    def _guarded(self, action: Callable[[], object]) -> None:
        try:
            action()
        except OsmosisError as problem:
            log.warning("%s", problem)
        except Exception:
            log.exception("%s: what was to be done there failed", self._executor.name)
