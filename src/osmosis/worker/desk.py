"""Where a worker asks for work: the platform, over HTTP or in its own process."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Protocol, TypeVar

import httpx

from osmosis._version import __version__
from osmosis.base.net import is_http, is_loopback
from osmosis.errors import NetworkError, OsmosisError, PlatformError, UsageError, from_wire
from osmosis.records.base import Record
from osmosis.records.contract.worker_bodies import (
    JobStarted,
    WorkerHello,
    WorkerLeaves,
    WorkerOrders,
    WorkerRound,
    WorkerWelcome,
)

TIMEOUT_S = 30.0
R = TypeVar("R", bound=Record)


class Desk(Protocol):
    """What a worker says to its platform. Each raises `NetworkError` when it does not answer now, `AuthRequired` or
    `Forbidden` when this worker is not wanted any more."""

    def hello(self, who: WorkerHello) -> WorkerWelcome: ...

    def round(self, said: WorkerRound) -> WorkerOrders: ...

    def started(self, said: JobStarted) -> None: ...

    def leave(self, said: WorkerLeaves) -> None: ...


class HttpDesk:
    """A platform elsewhere, by its URL and a worker token. Use as a context manager."""

    def __init__(self, url: str, token: str, *, ca_file: Path | None = None) -> None:
        if not is_http(url):
            raise UsageError(f"{url!r} is not the URL of a platform", hint="--platform-url https://HOST")
        if not url.startswith("https://") and not is_loopback(url):
            raise UsageError(
                f"{url} is neither https nor on this machine: a worker's token does not go there",
                hint="put TLS before the platform and give its https:// address, or use an ssh tunnel",
            )
        if ca_file is not None and not ca_file.is_file():
            raise UsageError(f"--ca-file: {ca_file} does not exist")
        self.url = url.rstrip("/")
        self._http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {token}", "User-Agent": f"osmosis-worker/{__version__}"},
            timeout=TIMEOUT_S,
            trust_env=not is_loopback(url),
            verify=str(ca_file) if ca_file is not None else True,
        )

    def __enter__(self) -> HttpDesk:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def hello(self, who: WorkerHello) -> WorkerWelcome:
        return self._say("hello", who, WorkerWelcome)

    def round(self, said: WorkerRound) -> WorkerOrders:
        return self._say("claim", said, WorkerOrders)

    def started(self, said: JobStarted) -> None:
        self._post("started", said)

    def leave(self, said: WorkerLeaves) -> None:
        self._post("leave", said)

    def _say(self, what: str, said: Record, answer: type[R]) -> R:
        body = self._post(what, said)
        try:
            return answer.model_validate_json(body)
        except ValueError as problem:
            raise PlatformError(
                f"{self.url} answered a worker with something else than it expects",
                hint="use the same version of osmosis on both sides",
            ) from problem

    def _post(self, what: str, said: Record) -> bytes:
        try:
            answer = self._http.post(
                f"/api/workers/{what}",
                content=said.model_dump_json().encode(),
                headers={"Content-Type": "application/json"},
            )
        except httpx.HTTPError as problem:
            raise NetworkError(f"the platform at {self.url} cannot be reached: {problem}") from problem
        if answer.status_code >= 500 or answer.status_code == 429:
            raise NetworkError(f"the platform at {self.url} answered HTTP {answer.status_code}")
        if answer.status_code >= 400:
            raise _refused(answer)
        return answer.content


def _refused(answer: httpx.Response) -> OsmosisError:
    try:
        body = answer.json()
    except ValueError:
        body = None
    text = {"message": f"the platform answered HTTP {answer.status_code}"}
    return from_wire(answer.status_code, body if isinstance(body, dict) else text)
