"""The sandboxes of rollouts on a server that is in a sandbox itself: opened beside it, behind the model proxy. A wrong
order gets an answer: it fails the rollout's own call, never the run."""

import asyncio
import base64
import binascii
import threading
from collections.abc import Callable

from osmosis.errors import OsmosisError, SandboxUnavailable, ValidationError
from osmosis.records.sandbox import SandboxAnswer, SandboxOrder, SessionCommand
from osmosis.sandbox.session import Session, SessionKind
from osmosis.sdk.sandbox import encode_bytes
from osmosis.sdk.user_code import in_thread

MOST_PER_ROLLOUT = 16


class Sandboxes:
    def __init__(self, kind: Callable[[], SessionKind]) -> None:
        self._kind = kind
        self._opened_kind: SessionKind | None = None
        self._sessions: dict[str, dict[str, Session]] = {}
        self._lock = threading.Lock()
        self._running: dict[str, set[threading.Event]] = {}

    async def answer(self, rollout_id: str, order: SandboxOrder) -> SandboxAnswer:
        stop = threading.Event()
        running = self._running.setdefault(rollout_id, set())
        running.add(stop)
        try:
            return await in_thread(self._carry_out, rollout_id, order, stop)
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
        for stop in self._running.pop(rollout_id, ()):
            stop.set()
        with self._lock:
            sessions = self._sessions.pop(rollout_id, {})
        if sessions:
            threading.Thread(target=_close, args=(list(sessions.values()),), daemon=True).start()

    def _carry_out(self, rollout_id: str, order: SandboxOrder, stop: threading.Event) -> SandboxAnswer:
        if order.do == "close":
            with self._lock:
                session = self._sessions.get(rollout_id, {}).pop(order.sandbox, None)
            if session is not None:
                session.close()
            return SandboxAnswer()
        session = self._open_session(rollout_id, order.sandbox)
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
            out, err = encode_bytes(done.stdout), encode_bytes(done.stderr)
            ended, seconds = done.ended.value, done.seconds
            return SandboxAnswer(exit_code=done.code, stdout=out, stderr=err, ended=ended, seconds=seconds)
        if order.do == "write":
            session.write(order.path, _content(order.content))
        elif order.do == "read":
            return SandboxAnswer(content=encode_bytes(session.read(order.path)))
        elif order.do == "list":
            return SandboxAnswer(files=session.files())
        return SandboxAnswer(workdir=session.workdir)

    def _open_session(self, rollout_id: str, name: str) -> Session:
        with self._lock:
            if self._opened_kind is None:
                self._opened_kind = self._kind()
            sessions = self._sessions.setdefault(rollout_id, {})
            if name not in sessions:
                if len(sessions) >= MOST_PER_ROLLOUT:
                    raise ValidationError(f"a rollout has at most {MOST_PER_ROLLOUT} sandboxes at once")
                sessions[name] = Session(self._opened_kind)
            return sessions[name]


def _close(sessions: list[Session]) -> None:
    for session in sessions:
        session.close()


def _content(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as problem:
        raise ValidationError(f"the content is not base64: {problem}") from problem
