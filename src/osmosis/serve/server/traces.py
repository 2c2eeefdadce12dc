"""Traces of rollouts: one JSON Lines file per rollout in the log folder, written by one background thread so that
no event waits for a disk. Known secrets are taken out of every line before it leaves this module; a rollout id that
is no plain file name is spelled safely, so a trace never leaves the folder.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from osmosis.engine.redact import Redactor
from osmosis.sdk.agent_loop import trace_line, trace_path

log = logging.getLogger("osmosis.serve")

_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL")
_MIN_SECRET = 8


def secret_values(environ: Mapping[str, str]) -> list[str]:
    """Values of variables whose names say that they are secret."""
    return [
        value
        for name, value in environ.items()
        if len(value) >= _MIN_SECRET and any(word in name.upper() for word in _SECRET_WORDS)
    ]


class TraceFolder:
    """Writes the traces of one server run. `close` returns when everything is on disk."""

    def __init__(self, folder: Path, secrets: Iterable[str] = ()) -> None:
        self.folder = folder
        self._secrets = [value for value in secrets if value]
        self._lines: queue.SimpleQueue[tuple[Path, str, Redactor] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._shared = Redactor(self._secrets)

    def open(self, rollout_id: str, secrets: Iterable[str | None] = ()) -> RolloutTrace:
        """The trace of one rollout; `secrets` are its own, on top of the server's."""
        own = [value for value in secrets if value]
        redactor = Redactor([*self._secrets, *own]) if own else self._shared
        return RolloutTrace(self, trace_path(self.folder, rollout_id), redactor)

    def put(self, path: Path, text: str, redactor: Redactor) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="osmosis-traces", daemon=True)
            self._thread.start()
        self._lines.put((path, text, redactor))

    def close(self) -> None:
        if self._thread is not None:
            self._lines.put(None)
            self._thread.join(timeout=10.0)
            self._thread = None

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            path, text, redactor = line
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("a", encoding="utf-8") as file:
                    file.write(redactor.text(text) + "\n")
            except Exception as exc:  # noqa: BLE001 - one line: it must not cost all later ones
                log.warning("cannot write the trace %s: %s", path, exc)


class RolloutTrace:
    """One rollout's trace: `write` takes a JSON-like object and returns at once."""

    def __init__(self, folder: TraceFolder, path: Path, redactor: Redactor) -> None:
        self._folder = folder
        self._redactor = redactor
        self.path = path

    def write(self, line: Mapping[str, Any]) -> None:
        # Encoded here, not in the thread: the agent may go on changing its messages.
        self._folder.put(self.path, trace_line(line), self._redactor)
