"""The files a rollout server writes about each rollout: its trace, one JSON Lines file in the log folder, and beside
the files of its workflow `<root>/<id>/trajectory.json` (an ATIF document) and `diagnostics.json`. A background thread
writes, known secrets are removed, and a rollout id never leads out of the folder."""

import asyncio
import json
import logging
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import ValidationError as BadShape

from osmosis._version import __version__
from osmosis.base.redact import Redactor
from osmosis.records.base import utc_now
from osmosis.records.protocol.messages import RolloutInit, check_rollout_id
from osmosis.records.run.rollout import Message
from osmosis.records.trajectory import CallbackAnswer, ModelUsage, build_trajectory
from osmosis.sdk.agent_loop import trace_line, trace_path
from osmosis.sdk.backend import ExecutionResult
from osmosis.sdk.types import json_safe
from osmosis.serve.server.queue import AcceptedRollout, RolloutOutcome

log = logging.getLogger("osmosis.serve")

_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL")
_MIN_SECRET = 8


def secret_values(environ: Mapping[str, str]) -> list[str]:
    return [
        value
        for name, value in environ.items()
        if len(value) >= _MIN_SECRET and any(word in name.upper() for word in _SECRET_WORDS)
    ]


class _WriterThread:
    def __init__(self, name: str, *, close_within_s: float) -> None:
        self._name = name
        self._close_within_s = close_within_s
        self._work: queue.SimpleQueue[tuple[str, Callable[[], None]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def put(self, name: str, write: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._work.put((name, write))

    def close(self) -> None:
        if self._thread is not None:
            self._work.put(None)
            self._thread.join(timeout=self._close_within_s)
            self._thread = None

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            name, write = item
            try:
                write()
            except Exception as exc:  # noqa: BLE001 - one file or line: it must not cost all later ones
                log.warning("cannot write %s: %s", name, exc)


class TraceFolder:
    def __init__(self, folder: Path, secrets: Iterable[str] = ()) -> None:
        self.folder = folder
        self._secrets = [value for value in secrets if value]
        self._shared = Redactor(self._secrets)
        self._thread = _WriterThread("osmosis-traces", close_within_s=10.0)
        self.close = self._thread.close

    def open(self, rollout_id: str, secrets: Iterable[str | None] = ()) -> "RolloutTrace":
        own = [value for value in secrets if value]
        redactor = Redactor([*self._secrets, *own]) if own else self._shared
        return RolloutTrace(self._thread, trace_path(self.folder, rollout_id), redactor)


@dataclass(eq=False, repr=False)
class RolloutTrace:
    thread: _WriterThread
    path: Path
    redactor: Redactor

    def write(self, line: Mapping[str, object]) -> None:
        # Encoded here, not in the thread: the agent may go on changing its messages.
        self.thread.put(f"the trace {self.path}", partial(self._append, trace_line(line)))

    def _append(self, text: str) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(self.redactor.text(text) + "\n")


@dataclass(eq=False, slots=True)
class EndedRollout:
    rollout_id: str
    init: RolloutInit
    outcome: RolloutOutcome
    execution: ExecutionResult | None  # Result; None when it was ended from outside
    queue_ms: float
    duration_ms: float
    finished_at: str

    @classmethod
    def of(cls, entry: AcceptedRollout, init: RolloutInit, execution: ExecutionResult | None) -> "EndedRollout":
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
        sample = self.execution.sample if self.execution is not None else None
        return sample.trajectory_messages if sample is not None else self.init.initial_messages


class TrajectoryWriter:
    def __init__(self, root: Path, secrets: Iterable[str] = (), *, everything: bool = True) -> None:
        self.root = root
        self.everything = everything
        """False: only for rollouts whose workflow or grader made its folder of artifacts."""
        self._secrets = [value for value in secrets if value]
        self._thread = _WriterThread("osmosis-trajectories", close_within_s=30.0)
        self.close = self._thread.close

    def wants(self, rollout_id: str) -> bool:
        return self.everything or (self.root / rollout_id / "artifacts").is_dir()

    def put(self, ended: EndedRollout, answer: bytes | None = None) -> None:
        folder = self.root / check_rollout_id(ended.rollout_id)
        self._thread.put(
            f"the files of rollout {ended.rollout_id}", lambda: _write_files(folder, self._compose(ended, answer))
        )

    def _compose(self, ended: EndedRollout, answer: bytes | None) -> Iterator[tuple[str, bytes]]:
        """Yield name and content of each file, without the server's secrets and the keys of the rollout."""
        keys = [key for key in (ended.init.llm_api_key, ended.init.controller_api_key) if key]
        redactor = Redactor([*self._secrets, *keys])

        def encode(document: Mapping[str, object]) -> bytes:
            text = json.dumps(redactor.data(document), ensure_ascii=False, allow_nan=False)
            return f"{text}\n".encode()

        outcome = ended.outcome
        diagnostics = {
            "rollout_id": ended.rollout_id,
            "status": outcome.status,
            "err_category": outcome.category,
            "failure": outcome.failure.to_dict() if outcome.failure else None,
            "timings": {"finished_at": ended.finished_at, "queue_ms": ended.queue_ms, "duration_ms": ended.duration_ms},
        }
        yield "diagnostics.json", encode(diagnostics)
        messages = ended.messages
        if messages:
            trajectory = build_trajectory(
                json_safe(messages, "trajectory_messages"),
                ended.rollout_id,
                version=__version__,
                usage=_usage(answer, ended.rollout_id),
                opening=len(ended.init.initial_messages),
                osmosis=_facts(ended),
            )
            yield "trajectory.json", encode(trajectory.to_dict())


def _write_files(folder: Path, files: Iterable[tuple[str, bytes]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files:
        file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)
        with open(file, "wb") as opened:
            opened.write(content)


def _facts(ended: EndedRollout) -> dict[str, object]:
    sample = ended.outcome.sample
    facts: dict[str, object] = {
        "status": ended.outcome.status,
        "label": ended.init.label,
        "reward": sample.reward if sample else None,
        "request_extra_fields": json_safe(ended.init.extra_fields, "extra_fields"),
        "failure": ended.outcome.failure.to_dict() if ended.outcome.failure else None,
    }
    if sample is not None:
        facts |= {"remove_sample": sample.remove_sample, "metrics": sample.metrics, "extra_fields": sample.extra_fields}
    return facts


def _usage(answer: bytes | None, rollout_id: str) -> ModelUsage | None:
    try:
        reply = CallbackAnswer.model_validate_json(answer) if answer else None
    except BadShape:
        return None  # a trainer may answer whatever it likes
    return reply.trajectory.usage(rollout_id) if reply is not None and reply.trajectory is not None else None
