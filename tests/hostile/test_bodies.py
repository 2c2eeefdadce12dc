"""Bodies are refused while they are read, and large ones of somebody unknown before: for every route there is."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from fastapi.routing import APIRoute
from starlette.types import Message

from osmosis.platform import http as platform_http
from support.platform_app import RunningPlatform, running_platform

REFUSED = (400, 401, 403, 404, 405, 409, 413, 422)
CHUNK = 256 * 1024


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    with running_platform(tmp_path_factory.mktemp("bodies") / "data") as running:
        yield running


@dataclass
class Visit:
    """One request, handed to the application without a server: a body that never ends, unless a size is announced."""

    platform: RunningPlatform
    path: str
    token: str = ""
    announced: int | None = None
    method: str = "POST"
    read: int = 0
    answers: list[Message] = field(default_factory=list)

    async def send(self) -> int:
        headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
        headers += [(b"authorization", f"Bearer {self.token}".encode())] if self.token else []
        headers += [(b"x-osmosis-workspace", b"demo")]
        if self.announced is not None:
            headers.append((b"content-length", str(self.announced).encode()))
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": self.method, "scheme": "http",
            "path": self.path, "raw_path": self.path.encode(), "query_string": b"", "root_path": "", "headers": headers,
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 7575), "state": {},
        }  # fmt: skip
        await self.platform.app(scope, self._receive, self._answer)
        return int(next(message["status"] for message in self.answers if "status" in message))

    async def _receive(self) -> Message:
        self.read += CHUNK
        return {"type": "http.request", "body": b" " * CHUNK, "more_body": True}

    async def _answer(self, message: Message) -> None:
        self.answers.append(message)

    @property
    def text(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.answers)


def routes_with_bodies(platform: RunningPlatform) -> list[tuple[str, str]]:
    found = []
    for route in platform.app.routes:
        if isinstance(route, APIRoute):
            path = route.path.replace("{run_id}", "r1").replace("{", "").replace("}", "")
            found += [(method, path) for method in route.methods or () if method in ("POST", "PUT", "PATCH", "DELETE")]
    assert len(found) > 30
    return found


async def test_no_route_reads_much_of_somebody_unknown(platform: RunningPlatform) -> None:
    for method, path in routes_with_bodies(platform):
        visit = Visit(platform, path, method=method)
        status = await visit.send()
        assert visit.read == 0 or status in REFUSED, (method, path, status, visit.text)
        # A webhook is signed over all of its body: that much has to be read of whoever sends it.
        unknown = platform_http.limit_of(path) if platform_http.HOOKS.match(path) else platform_http.UNKNOWN_BYTES
        assert visit.read <= (unknown or 0) + CHUNK + platform_http.LINGER_BYTES, (method, path)
        announced = Visit(platform, path, announced=10**12, method=method)
        status = await announced.send()
        assert status in REFUSED, (method, path, status)


async def test_no_route_reads_without_end_of_a_member(platform: RunningPlatform) -> None:
    for method, path in routes_with_bodies(platform):
        visit = Visit(platform, path, platform.token, method=method)
        status = await visit.send()
        assert visit.read == 0 or status in REFUSED, (method, path, status, visit.text)
        limit = platform_http.limit_of(path)
        assert visit.read <= (limit or 0) + CHUNK + platform_http.LINGER_BYTES, (method, path)


@pytest.mark.parametrize(
    ("path", "token", "announced", "status", "says"),
    [
        ("/api/cli/device/authorize", "", 2**20, 413, b"larger than"),
        ("/api/cli/eval-runs", "", 2**20, 401, b"AUTH_HEADER_MISSING"),
        ("/api/cli/eval-runs", "osm_wrong", None, 401, b"TOKEN_INVALID"),
        ("/api/cli/eval-runs", "OURS", 2**30, 413, b"larger than 4194304 bytes"),
        ("/api/cli/eval-runs", "OURS", None, 413, b"larger than 4194304 bytes"),
        ("/api/jobs/r1/rollouts", "OURS", 2**20, 409, b"LEASE_LOST"),
        ("/login", "OURS", 2**20, 413, b"larger than"),
        ("/nowhere", "OURS", 2**20, 413, b"larger than"),
    ],
)
async def test_the_answer_says_why(
    platform: RunningPlatform, path: str, token: str, announced: int | None, status: int, says: bytes
) -> None:
    token = platform.token if token == "OURS" else token
    visit = Visit(platform, path, token, announced)
    got = await visit.send()
    assert (got, says in visit.text) == (status, True), visit.text
    headers = dict(visit.answers[0]["headers"])
    assert headers[b"connection"] == b"close"
    if announced:
        assert visit.answers[1]["body"], "the answer is not kept back until the rest was read"
