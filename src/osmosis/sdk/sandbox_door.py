"""A sandbox beside the rollout, asked for over the door that the rollout has: its model endpoint.

A rollout that is in a boundary itself can make none inside of it. Who runs it, on the other side of the endpoint, makes
a sibling with the rollout's environment; here is only what is sent there and read back.
"""

from __future__ import annotations

import base64
import contextlib
import secrets
import socket
import threading
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from osmosis.errors import OsmosisError, SandboxUnavailable
from osmosis.records.sandbox_command import EndedBy, LimitedResult, SessionCommand
from osmosis.records.sandbox_order import SandboxAnswer, SandboxOrder

if TYPE_CHECKING:
    import http.client

PATIENCE_S = 120.0
"""Beyond the time of the command: it may wait for its turn."""


class Door:
    """One sandbox. Its name is this side's; the other side makes it when it is first named."""

    def __init__(self, url: str, key: str, name: str = "") -> None:
        self._parts = urlsplit(f"{url.rstrip('/')}/sandbox")
        self._url, self._key = url, key
        self._name = name or secrets.token_hex(8)
        self._workdir = ""

    @property
    def workdir(self) -> str:
        if not self._workdir:
            self._workdir = self._ask(SandboxOrder(do="open", sandbox=self._name)).workdir
        return self._workdir

    def run(self, command: SessionCommand, stop: threading.Event | None = None) -> LimitedResult:
        order = SandboxOrder(
            do="run",
            sandbox=self._name,
            argv=list(command.argv),
            content=_text(command.stdin),
            environ=dict(command.environ),
            path=command.cwd,
            time_s=command.time_s,
            memory_mb=command.memory_mb,
            network=command.network,
        )
        done = self._ask(order, command.time_s + PATIENCE_S, stop)
        return LimitedResult(
            done.exit_code, _content(done.stdout), _content(done.stderr), EndedBy(done.ended), done.seconds
        )

    def write(self, path: str, content: bytes) -> None:
        self._ask(SandboxOrder(do="write", sandbox=self._name, path=path, content=_text(content)))

    def read(self, path: str) -> bytes:
        return _content(self._ask(SandboxOrder(do="read", sandbox=self._name, path=path)).content)

    def files(self) -> list[str]:
        return self._ask(SandboxOrder(do="list", sandbox=self._name)).files

    def another(self) -> Door:
        return Door(self._url, self._key)

    def close(self) -> None:
        self._ask(SandboxOrder(do="close", sandbox=self._name))

    def _ask(
        self, order: SandboxOrder, time_s: float = PATIENCE_S, stop: threading.Event | None = None
    ) -> SandboxAnswer:
        import http.client  # with the whole of `email`: every evaluation imports this module, few rollouts open a door

        made = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        connection = made(self._parts.hostname or "", self._parts.port, timeout=time_s)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._key}"}
        ended = threading.Event()
        if stop is not None:
            # The other side ends the command when nobody listens any more.
            threading.Thread(target=_hang_up, args=(connection, stop, ended), daemon=True).start()
        try:
            connection.request("POST", self._parts.path, order.model_dump_json(exclude_none=True), headers)
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as problem:
            raise SandboxUnavailable(f"the sandbox does not answer: {type(problem).__name__}: {problem}") from problem
        finally:
            ended.set()
            connection.close()
        if answer.status == 404:
            raise SandboxUnavailable("no sandbox is offered to this rollout", hint="run it with osmosis 1.2 or later")
        if answer.status != 200:
            raise SandboxUnavailable(
                f"the sandbox answered with status {answer.status}: {body[:300].decode(errors='replace')}"
            )
        told = SandboxAnswer.model_validate_json(body)
        if told.problem is not None:
            refused = SandboxUnavailable if told.unavailable else OsmosisError
            raise refused(told.problem, hint=told.hint)
        return told


def _hang_up(connection: http.client.HTTPConnection, stop: threading.Event, ended: threading.Event) -> None:
    while not ended.wait(0.1):
        if stop.is_set():
            with contextlib.suppress(OSError, AttributeError):  # it is over, or not there yet
                connection.sock.shutdown(socket.SHUT_RDWR)
            return


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _content(text: str) -> bytes:
    return base64.b64decode(text)
