from pathlib import Path
from typing import Protocol, TypeVar

import httpx

from osmosis._version import __version__
from osmosis.base.net import is_http, is_loopback
from osmosis.errors import NetworkError, PlatformError, UsageError, from_wire
from osmosis.records.api.workers import JobStarted, WorkerHello, WorkerLeaves, WorkerOrders, WorkerRound, WorkerWelcome
from osmosis.records.base import Record

TIMEOUT_S = 30.0
R = TypeVar("R", bound=Record)


class PlatformApi(Protocol):
    def hello(self, hello: WorkerHello) -> WorkerWelcome: ...

    def round(self, report: WorkerRound) -> WorkerOrders: ...

    def started(self, report: JobStarted) -> None: ...

    def leave(self, report: WorkerLeaves) -> None: ...


class HttpPlatformApi:
    def __init__(self, url: str, token: str, *, ca_file: Path | None = None) -> None:
        if not is_http(url):
            raise UsageError(f"{url!r} is not the URL of a platform", hint="--platform-url https://HOST")
        if not url.startswith("https://") and not is_loopback(url):
            message = f"{url} is neither https nor on this machine: a worker's token does not go there"
            hint = "put TLS before the platform and give its https:// address, or use an ssh tunnel"
            raise UsageError(message, hint=hint)
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

    def __enter__(self) -> "HttpPlatformApi":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def hello(self, hello: WorkerHello) -> WorkerWelcome:
        return self._say("hello", hello, WorkerWelcome)

    def round(self, report: WorkerRound) -> WorkerOrders:
        return self._say("claim", report, WorkerOrders)

    def started(self, report: JobStarted) -> None:
        self._post("started", report)

    def leave(self, report: WorkerLeaves) -> None:
        self._post("leave", report)

    def _say(self, what: str, record: Record, answer: type[R]) -> R:
        body = self._post(what, record)
        try:
            return answer.model_validate_json(body)
        except ValueError as problem:
            message = f"{self.url} answered a worker with something else than it expects"
            raise PlatformError(message, hint="use the same version of osmosis on both sides") from problem

    def _post(self, what: str, record: Record) -> bytes:
        try:
            headers = {"Content-Type": "application/json"}
            answer = self._http.post(f"/api/workers/{what}", content=record.model_dump_json().encode(), headers=headers)
        except httpx.HTTPError as problem:
            raise NetworkError(f"the platform at {self.url} cannot be reached: {problem}") from problem
        if answer.status_code >= 500 or answer.status_code == 429:
            raise NetworkError(f"the platform at {self.url} answered HTTP {answer.status_code}")
        if answer.status_code >= 400:
            try:
                body = answer.json()
            except ValueError:
                body = None
            text = {"message": f"the platform answered HTTP {answer.status_code}"}
            raise from_wire(answer.status_code, body if isinstance(body, dict) else text)
        return answer.content
