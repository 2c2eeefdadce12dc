"""What a rollout server writes about each rollout: its trace, one JSON Lines file in the log folder, and beside the
files of its workflow `<root>/<id>/trajectory.json` (an ATIF document) and `diagnostics.json`. A background thread
writes, so no event waits for a disk; known secrets are taken out of all of it, a rollout id never leads out of the
folder, and nothing is done for rollouts of which nobody wants files.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import queue
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError as BadShape

from osmosis._version import __version__
from osmosis.base.redact import Redactor
from osmosis.records.base import utc_now
from osmosis.records.rollout import Message
from osmosis.records.trajectory import CallbackAnswer, ModelUsage, build_trajectory
from osmosis.records.wire import RolloutInit
from osmosis.records.wire_checks import check_rollout_id
from osmosis.sdk.agent_loop import trace_line, trace_path
from osmosis.sdk.types import json_safe

from .queue import AcceptedRollout, RolloutOutcome

if TYPE_CHECKING:
    from osmosis.sdk.backend import ExecutionResult

log = logging.getLogger("osmosis.serve")

_PLAIN = re.compile(r"[A-Za-z0-9_-]{8,}")
"""The same in JSON, HTML, a URL and on a command line."""
_LINE_END = re.compile(r"(?:\\+r)?\\+n[ \t]*")
"""Inside JSON."""
_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL")
_MIN_SECRET = 8
SHORT = 40
"""Messages of a conversation whose files are composed at once."""


def secret_values(environ: Mapping[str, str]) -> list[str]:
    """Values of variables whose names say that they are secret."""
    return [
        value
        for name, value in environ.items()
        if len(value) >= _MIN_SECRET and any(word in name.upper() for word in _SECRET_WORDS)
    ]


class _WriterThread:
    """A thread, started when first needed, that does what it is given in order. What fails is logged and forgotten."""

    def __init__(self, name: str, *, close_within_s: float) -> None:
        self._name = name
        self._close_within_s = close_within_s
        self._work: queue.SimpleQueue[tuple[str, Callable[[], None]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def put(self, what: str, write: Callable[[], None]) -> None:
        """Calls `write` in the thread; `what` names it in the log when it fails."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._work.put((what, write))

    def close(self) -> None:
        """Returns when everything is written, or the time for it is up."""
        if self._thread is not None:
            self._work.put(None)
            self._thread.join(timeout=self._close_within_s)
            self._thread = None

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            what, write = item
            try:
                write()
            except Exception as exc:  # noqa: BLE001 - one file or line: it must not cost all later ones
                log.warning("cannot write %s: %s", what, exc)


class TraceFolder:
    """Writes the traces of one server run. `close` returns when everything is on disk."""

    def __init__(self, folder: Path, secrets: Iterable[str] = ()) -> None:
        self.folder = folder
        self._secrets = [value for value in secrets if value]
        self._shared = Redactor(self._secrets)
        self._thread = _WriterThread("osmosis-traces", close_within_s=10.0)
        self.close = self._thread.close

    def open(self, rollout_id: str, secrets: Iterable[str | None] = ()) -> RolloutTrace:
        """The trace of one rollout; `secrets` are its own, on top of the server's."""
        own = [value for value in secrets if value]
        redactor = Redactor([*self._secrets, *own]) if own else self._shared
        return RolloutTrace(self._thread, trace_path(self.folder, rollout_id), redactor)


class RolloutTrace:
    """One rollout's trace: `write` takes a JSON-like object and returns at once."""

    def __init__(self, thread: _WriterThread, path: Path, redactor: Redactor) -> None:
        self._thread = thread
        self._redactor = redactor
        self.path = path

    def write(self, line: Mapping[str, object]) -> None:
        # Encoded here, not in the thread: the agent may go on changing its messages.
        self._thread.put(f"the trace {self.path}", partial(self._append, trace_line(line)))

    def _append(self, text: str) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(self._redactor.text(text) + "\n")


@dataclass(eq=False, slots=True)
class EndedRollout:
    """All that is known of a rollout that is over."""

    rollout_id: str
    init: RolloutInit
    outcome: RolloutOutcome
    execution: ExecutionResult | None
    """None: it was ended from outside."""
    queue_ms: float
    duration_ms: float
    finished_at: str

    @classmethod
    def of(cls, entry: AcceptedRollout, init: RolloutInit, execution: ExecutionResult | None) -> EndedRollout:
        """Of a rollout that has just ended."""
        assert entry.outcome is not None
        ended = asyncio.get_running_loop().time()
        started = ended if entry.started_at is None else entry.started_at
        return cls(
            rollout_id=entry.id,
            init=init,
            outcome=entry.outcome,
            execution=execution,
            queue_ms=round((started - entry.accepted_at) * 1000, 3),
            duration_ms=round((ended - started) * 1000, 3),
            finished_at=utc_now().isoformat(),
        )

    @property
    def messages(self) -> list[Message] | None:
        """The conversation as it is kept; how it began when there is no sample; None: not to be kept."""
        sample = self.execution.sample if self.execution is not None else None
        return sample.trajectory_messages if sample is not None else self.init.initial_messages


class TrajectoryWriter:
    """Writes the files of one server. `close` returns when everything is on disk."""

    def __init__(self, root: Path, secrets: Iterable[str] = (), *, everything: bool = True) -> None:
        self.root = root
        self.everything = everything
        """False: only for rollouts whose workflow or grader made its folder of artifacts."""
        self._secrets = Redactor(value for value in secrets if value)
        self._thread = _WriterThread("osmosis-trajectories", close_within_s=30.0)
        self.close = self._thread.close

    def wants(self, rollout_id: str) -> bool:
        return self.everything or os.path.isdir(f"{self.root}/{rollout_id}/artifacts")

    def put(self, ended: EndedRollout, answer: bytes | None = None) -> None:
        """Writes in the background. `answer` is what the last callback was answered with: usage and cost are in it."""
        folder, what = self.root / check_rollout_id(ended.rollout_id), f"the files of rollout {ended.rollout_id}"
        if len(ended.messages or ()) > SHORT:
            self._thread.put(what, lambda: _write_files(folder, self._composed(ended, answer)))
            return
        # Composed here, not in the thread: two threads that both compute hand each other the interpreter's lock, and
        # every request then waits for it.
        self._thread.put(what, partial(_write_files, folder, self._composed(ended, answer)))

    def _composed(self, ended: EndedRollout, answer: bytes | None) -> dict[str, bytes]:
        """Name -> content. One that cannot be made does not keep the other back."""
        files = {}
        try:
            for name, content in self._files(ended, answer):
                files[name] = content
        except Exception as exc:  # noqa: BLE001 - as in the thread: the files of one rollout cost nobody else
            log.warning("cannot write a file of rollout %s: %s", ended.rollout_id, exc)
        return files

    def _files(self, ended: EndedRollout, answer: bytes | None) -> Iterator[tuple[str, bytes]]:
        keys = [key for key in (ended.init.llm_api_key, ended.init.controller_api_key) if key]
        yield "diagnostics.json", self._safe(_diagnostics(ended), keys)
        messages = ended.messages
        if not messages:
            return
        built = build_trajectory(
            json_safe(messages, "trajectory_messages"),
            ended.rollout_id,
            version=__version__,
            usage=_usage(answer, ended.rollout_id),
            opening=len(ended.init.initial_messages),
            osmosis=_facts(ended),
        )
        yield "trajectory.json", self._safe(built.to_dict(), keys)

    def _safe(self, document: dict[str, object], keys: list[str]) -> bytes:
        """As JSON, without the server's secrets and the keys of the rollout."""
        text = json.dumps(document, ensure_ascii=False, allow_nan=False)
        if self._secrets.touches(text.encode("utf-8", "replace")) or _may_hold(text, keys):
            own = Redactor(keys)
            text = json.dumps(own.data(self._secrets.data(json.loads(text))), ensure_ascii=False)
        return f"{text}\n".encode()


def _write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Each in its place at once: whoever reads it waits for the end of the rollout, and a rename for each is a third of
    what the disk has to do for a rollout."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        file = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)
        with open(file, "wb") as opened:
            opened.write(content)


def _may_hold(text: str, keys: list[str]) -> bool:
    """Whether looking for these keys in all their forms can find anything. Nearly always not; finding that out costs a
    hundredth of writing down the forms of keys that no other rollout has."""
    if any(key in text or not _PLAIN.fullmatch(key) for key in keys):
        return True  # a key of other letters looks different wherever it is quoted
    shortest = min((len(key) for key in keys), default=0)
    whole = _LINE_END.sub("", text) if "\\" in text else text
    return bool(keys) and _code_of(shortest).search(whole) is not None


@cache
def _code_of(length: int) -> re.Pattern[str]:
    """What a key of so many letters may be in hexadecimal, base32 or base64: at least so many letters in a row."""
    return re.compile(rf"[A-Za-z0-9+/=_-]{{{max(8, length * 4 // 3 - 3)}}}")


def _facts(ended: EndedRollout) -> dict[str, object]:
    """`extra.osmosis` of a trajectory."""
    sample = ended.outcome.sample
    facts: dict[str, object] = {
        "status": ended.outcome.status,
        "label": ended.init.label,
        "reward": sample.reward if sample else None,
        "request_extra_fields": json_safe(ended.init.extra_fields, "extra_fields"),
        "failure": ended.outcome.failure.to_dict() if ended.outcome.failure else None,
    }
    if sample is not None:
        facts |= {
            "remove_sample": sample.remove_sample,
            "metrics": sample.metrics,
            "extra_fields": sample.extra_fields,
        }
    return facts


def _diagnostics(ended: EndedRollout) -> dict[str, object]:
    outcome = ended.outcome
    return {
        "rollout_id": ended.rollout_id,
        "status": outcome.status,
        "err_category": outcome.category,
        "failure": outcome.failure.to_dict() if outcome.failure else None,
        "timings": {
            "finished_at": ended.finished_at,
            "queue_ms": ended.queue_ms,
            "duration_ms": ended.duration_ms,
        },
    }


def _usage(answer: bytes | None, rollout_id: str) -> ModelUsage | None:
    try:
        said = CallbackAnswer.model_validate_json(answer) if answer else None
    except BadShape:
        return None  # a trainer may answer whatever it likes: it told us nothing
    return said.trajectory.usage(rollout_id) if said is not None and said.trajectory is not None else None
