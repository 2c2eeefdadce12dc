"""The sandboxes of rollouts that a server runs: made on this side of the model proxy, because theirs is a boundary.

A rollout names its sandboxes as it likes, at most a few; they end with it, and what runs in them then, too. Whatever is
wrong with an order is an answer: it fails the rollout's own call, never the run.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import threading
from collections.abc import Callable

from osmosis.errors import OsmosisError, SandboxUnavailable, ValidationError
from osmosis.records.sandbox_command import SessionCommand
from osmosis.records.sandbox_order import SandboxAnswer, SandboxOrder
from osmosis.sandbox.session import Kind, Session
from osmosis.sdk.calls import in_thread

MOST_EACH = 16
"""Sandboxes of one rollout."""


class Sandboxes:
    """Of all rollouts of one run. `kind` says of which kind, and is asked once one is wanted; it may raise."""

    def __init__(self, kind: Callable[[], Kind]) -> None:
        self._kind = kind
        self._known: Kind | None = None
        self._sessions: dict[str, dict[str, Session]] = {}
        self._lock = threading.Lock()
        self._running: dict[str, set[threading.Event]] = {}

    async def answer(self, rollout_id: str, order: SandboxOrder) -> SandboxAnswer:
        """What comes of an order. Cancelling it ends the command."""
        stop = threading.Event()
        running = self._running.setdefault(rollout_id, set())
        running.add(stop)
        try:
            return await in_thread(self._do, rollout_id, order, stop)
        except OsmosisError as problem:
            return SandboxAnswer(
                problem=problem.message, hint=problem.hint, unavailable=isinstance(problem, SandboxUnavailable)
            )
        except OSError as problem:
            return SandboxAnswer(problem=f"the sandbox cannot be used: {problem}", unavailable=True)
        except asyncio.CancelledError:
            stop.set()
            raise
        finally:
            running.discard(stop)

    def close(self, rollout_id: str) -> None:
        """The rollout is over: nothing of it runs on, and its files go."""
        for stop in self._running.pop(rollout_id, ()):
            stop.set()
        with self._lock:
            sessions = self._sessions.pop(rollout_id, {})
        if sessions:
            threading.Thread(target=_close, args=(list(sessions.values()),), daemon=True).start()

    def _do(self, rollout_id: str, order: SandboxOrder, stop: threading.Event) -> SandboxAnswer:
        if order.do == "close":
            with self._lock:
                gone = self._sessions.get(rollout_id, {}).pop(order.sandbox, None)
            _close([gone] if gone else [])
            return SandboxAnswer()
        session = self._session(rollout_id, order.sandbox)
        if order.do == "run":
            command = SessionCommand(
                order.argv,
                stdin=_content(order.content),
                environ=order.environ,
                cwd=order.path,
                time_s=order.time_s,
                memory_mb=order.memory_mb,
                network=order.network,
            )
            done = session.run(command, stop)
            out, err = _text(done.stdout), _text(done.stderr)
            ended, seconds = done.ended.value, done.seconds
            return SandboxAnswer(exit_code=done.code, stdout=out, stderr=err, ended=ended, seconds=seconds)
        if order.do == "write":
            session.write(order.path, _content(order.content))
        elif order.do == "read":
            return SandboxAnswer(content=_text(session.read(order.path)))
        elif order.do == "list":
            return SandboxAnswer(files=session.files())
        return SandboxAnswer(workdir=session.workdir)

    def _session(self, rollout_id: str, name: str) -> Session:
        with self._lock:
            if self._known is None:
                self._known = self._kind()
            own = self._sessions.setdefault(rollout_id, {})
            if name not in own:
                if len(own) >= MOST_EACH:
                    raise ValidationError(f"a rollout has at most {MOST_EACH} sandboxes at once")
                own[name] = Session(self._known)
            return own[name]


def _close(sessions: list[Session]) -> None:
    for session in sessions:
        session.close()


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _content(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as problem:
        raise ValidationError(f"the content is not base64: {problem}") from problem
