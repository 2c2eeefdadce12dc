"""What a rollout server leaves on disk of each rollout, beside the files of its workflow: `<root>/<id>/trajectory.json`
(an ATIF document) and `diagnostics.json`. One background thread builds and writes, so no event waits for a disk; files
appear whole or not at all, known secrets are taken out, and nothing is done for rollouts of which nobody wants files.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import queue
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError as BadShape

from osmosis._version import __version__
from osmosis.engine.redact import Redactor
from osmosis.records.base import utc_now
from osmosis.records.rollout import Message
from osmosis.records.trajectory import CallbackAnswer, ModelUsage, build_trajectory
from osmosis.records.wire import RolloutInit, check_rollout_id
from osmosis.sdk.types import json_safe

from .outcome import Outcome
from .queue import Entry

if TYPE_CHECKING:
    from osmosis.sdk.backend import ExecutionResult

log = logging.getLogger("osmosis.serve")


def leavings(entry: Entry, init: RolloutInit, execution: ExecutionResult | None) -> Leavings:
    """Of a rollout that has just ended."""
    assert entry.outcome is not None
    ended = asyncio.get_running_loop().time()
    started = ended if entry.started_at is None else entry.started_at
    return Leavings(
        rollout_id=entry.id,
        init=init,
        outcome=entry.outcome,
        execution=execution,
        queue_ms=round((started - entry.accepted_at) * 1000, 3),
        duration_ms=round((ended - started) * 1000, 3),
        finished_at=utc_now().isoformat(),
    )


@dataclass(eq=False, slots=True)
class Leavings:
    """All that is known of a rollout that is over."""

    rollout_id: str
    init: RolloutInit
    outcome: Outcome
    execution: ExecutionResult | None
    """None: it was ended from outside."""
    queue_ms: float
    duration_ms: float
    finished_at: str

    @property
    def messages(self) -> list[Message] | None:
        """The conversation as it is kept; how it began when there is no sample; None: not to be kept."""
        sample = self.execution.sample if self.execution is not None else None
        return sample.trajectory_messages if sample is not None else self.init.initial_messages


class RolloutFiles:
    """Writes the files of one server. `close` returns when everything is on disk."""

    def __init__(self, root: Path, secrets: Iterable[str] = (), *, everything: bool = True) -> None:
        self.root = root
        self.everything = everything
        """False: only for rollouts whose workflow or grader made its folder of artifacts."""
        self._secrets = [value for value in secrets if value]
        self._jobs: queue.SimpleQueue[tuple[Leavings, bytes | None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def wants(self, rollout_id: str) -> bool:
        return self.everything or os.path.isdir(f"{self.root}/{rollout_id}/artifacts")

    def put(self, left: Leavings, answer: bytes | None = None) -> None:
        """Writes in the background. `answer` is what the last callback was answered with: usage and cost are in it."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="osmosis-trajectories", daemon=True)
            self._thread.start()
        self._jobs.put((left, answer))

    def close(self) -> None:
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(timeout=30.0)
            self._thread = None

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            left, answer = job
            try:
                self._write(left, answer)
            except Exception as exc:  # noqa: BLE001 - one rollout: its files must not cost the next one's
                log.warning("the files of rollout %s cannot be written: %s", left.rollout_id, exc)

    def _write(self, left: Leavings, answer: bytes | None) -> None:
        folder = self.root / check_rollout_id(left.rollout_id)
        folder.mkdir(parents=True, exist_ok=True)
        redactor = Redactor([*self._secrets, *filter(None, (left.init.llm_api_key, left.init.controller_api_key))])
        _place(folder / "diagnostics.json", redactor.data(_diagnostics(left)))
        messages = left.messages
        if not messages:
            return
        built = build_trajectory(
            redactor.data(json_safe(messages, "trajectory_messages")),
            left.rollout_id,
            version=__version__,
            usage=_usage(answer, left.rollout_id),
            opening=len(left.init.initial_messages),
            osmosis=redactor.data(_facts(left)),
        )
        _place(folder / "trajectory.json", built.to_dict())


def _place(path: Path, body: dict[str, Any]) -> None:
    draft = path.with_name(f".{path.name}.partial")
    draft.write_text(json.dumps(body, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    draft.replace(path)


def _facts(left: Leavings) -> dict[str, Any]:
    """`extra.osmosis` of a trajectory."""
    sample = left.outcome.sample
    facts: dict[str, Any] = {
        "status": left.outcome.status,
        "label": left.init.label,
        "reward": sample.reward if sample else None,
        "request_extra_fields": json_safe(left.init.extra_fields, "extra_fields"),
        "failure": left.outcome.failure.to_dict() if left.outcome.failure else None,
    }
    if sample is not None:
        facts |= {
            "remove_sample": sample.remove_sample,
            "metrics": sample.metrics,
            "extra_fields": sample.extra_fields,
        }
    return facts


def _diagnostics(left: Leavings) -> dict[str, Any]:
    outcome = left.outcome
    return {
        "rollout_id": left.rollout_id,
        "status": outcome.status,
        "err_category": outcome.category,
        "failure": outcome.failure.to_dict() if outcome.failure else None,
        "timings": {
            "finished_at": left.finished_at,
            "queue_ms": left.queue_ms,
            "duration_ms": left.duration_ms,
        },
    }


def _usage(answer: bytes | None, rollout_id: str) -> ModelUsage | None:
    try:
        said = CallbackAnswer.model_validate_json(answer) if answer else None
    except BadShape:
        return None  # a trainer may answer whatever it likes: it told us nothing
    return said.trajectory.usage(rollout_id) if said is not None and said.trajectory is not None else None
