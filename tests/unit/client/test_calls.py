"""HTTP to a platform: a real server on loopback answers; headers, errors, pages, transfers."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from osmosis.client import PlatformClient
from osmosis.errors import (
    AuthRequired,
    Conflict,
    NetworkError,
    NotFound,
    PlatformError,
    RateLimited,
    UpgradeRequired,
    ValidationError,
)
from osmosis.records.api.datasets import UploadPart, UploadPlan
from support.private_tls import PrivateAuthority
from support.receivers import Answer, Asked, site


class Server:
    """Answers with what the test says, and remembers what it was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[Asked] = []
        self.answer: Callable[[Asked], Answer] = lambda _: (200, {}, b"{}")

    def take(self, asked: Asked) -> Answer:
        self.asked.append(asked)
        return self.answer(asked)

    def say(self, status: int, body: Any, **headers: str) -> None:
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        self.answer = lambda _: (status, named, json.dumps(body).encode())


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    with site(made.take) as made.url:
        yield made


def test_every_call_says_who_asks_and_for_what(server: Server) -> None:
    with PlatformClient(server.url, "tok", identity="o/r") as client:
        client.datasets.page(limit=3)
        client.workspaces.list()
    first, second = server.asked
    assert first.path == "/api/cli/datasets?limit=3&offset=0"
    headers = first.headers
    assert headers["authorization"] == "Bearer tok"
    assert headers["x-osmosis-git"] == "o/r"
    assert headers["x-osmosis-cli-version"] == "1.0.0"
    assert headers["user-agent"] == "osmosis-cli/1.0.0"
    assert "x-osmosis-git" not in second.headers


def test_a_workspace_name_replaces_the_repository(server: Server) -> None:
    with PlatformClient(server.url, "tok", identity="o/r", workspace="w") as client:
        client.datasets.page()
    headers = server.asked[0].headers
    assert headers["x-osmosis-workspace"] == "w"
    assert "x-osmosis-git" not in headers


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, ValidationError),
        (401, AuthRequired),
        (404, NotFound),
        (409, Conflict),
        (426, UpgradeRequired),
        (429, RateLimited),
        (500, PlatformError),
    ],
)
def test_the_error_that_left_the_server_arrives(server: Server, status: int, kind: type[Exception]) -> None:
    issues = [{"key": "a", "message": "b"}]
    server.say(status, {"error": "old words", "message": "words", "code": "X", "issues": issues, "more": 1})
    with PlatformClient(server.url, "t") as client, pytest.raises(kind, match=r"^words") as caught:
        client.evals.get("x")
    details = caught.value.details  # type: ignore[attr-defined]
    assert (details["status_code"], details["platform_code"], details["more"]) == (status, "X", 1)
    assert details["issues"] == issues


@pytest.mark.parametrize("content", [b"<html>no</html>", b"[1]", b"\xff\xfe"])
def test_an_answer_that_is_no_object_is_named(server: Server, content: bytes) -> None:
    server.answer = lambda _: (200, {}, content)
    with PlatformClient(server.url, "t") as client, pytest.raises(PlatformError, match="other than a JSON object"):
        client.evals.get("x")
    server.answer = lambda _: (502, {}, content)
    with PlatformClient(server.url, "t") as client, pytest.raises(PlatformError, match="HTTP 502"):
        client.evals.get("x")


def test_an_answer_of_another_kind_is_named(server: Server) -> None:
    server.say(200, {"eval_run": {"id": "1", "name": "n"}})
    with PlatformClient(server.url, "t") as client, pytest.raises(PlatformError, match=r"eval_run\.status"):
        client.evals.get("x")


def test_an_empty_body_is_an_empty_object(server: Server) -> None:
    server.answer = lambda _: (204, {}, b"")
    with PlatformClient(server.url, "t") as client:
        client.evals.stop("x")


def test_nobody_there_says_how_to_start() -> None:
    with PlatformClient("http://127.0.0.1:9", "t") as client, pytest.raises(NetworkError) as caught:
        client.workspaces.list()
    assert caught.value.hint == "osmosis platform start"


def test_a_platform_that_takes_long_is_not_said_to_be_down() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with PlatformClient(url, "t") as client, pytest.raises(NetworkError, match="in time") as caught:
            client.call("GET", "verify", timeout=0.05)
    assert "wait" in str(caught.value.hint)


def test_lists_are_followed_to_the_end(server: Server) -> None:
    def pages(asked: Asked) -> Answer:
        offset = int(asked.path.rpartition("offset=")[2])
        following = offset + 2 if offset < 4 else None
        rows = [{"id": str(offset)}, {"id": str(offset + 1)}]
        return 200, {}, json.dumps({"datasets": rows, "next_offset": following}).encode()

    server.answer = pages
    with PlatformClient(server.url, "t") as client:
        assert [row.id for row in client.datasets.all()] == ["0", "1", "2", "3", "4", "5"]
    server.say(200, {})
    with PlatformClient(server.url, "t") as client:
        assert client.datasets.all() == []


def test_a_name_is_one_path_segment(server: Server) -> None:
    server.say(200, {"id": "1"})
    with PlatformClient(server.url, "t") as client:
        client.datasets.get("a/../b c")
    assert server.asked[0].path == "/api/cli/datasets/a%2F..%2Fb%20c"


def test_what_the_platform_says_about_versions_is_passed_on(server: Server) -> None:
    server.say(200, {}, X_Osmosis_Version_Status="deprecated", X_Osmosis_Version_Message="too old")
    said: list[tuple[str, str]] = []
    with PlatformClient(server.url, "t", warn=lambda code, text: said.append((code, text))) as client:
        client.workspaces.list()
    assert said == [("DEPRECATED", "too old")]


def test_a_file_goes_up_whole_or_in_parts(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "d.jsonl"
    file.write_bytes(b"0123456789")
    server.answer = lambda asked: (200, {"ETag": f'"{asked.path}"'}, b"")
    transfer, moved = PlatformClient(server.url, None).transfer, []
    plan = UploadPlan(method="simple", presigned_url=f"{server.url}/u")
    assert transfer.upload(file, plan, moved.append) == []
    assert server.asked[0].body == b"0123456789"
    parts = [UploadPart(part_number=n, presigned_url=f"{server.url}/{n}") for n in (1, 2, 3)]
    named = transfer.upload(file, UploadPlan(method="multipart", part_size=4, presigned_urls=parts))
    assert [asked.body for asked in server.asked[1:]] == [b"0123", b"4567", b"89"]
    assert named[2].to_dict() == {"PartNumber": 3, "ETag": '"/3"'}
    assert sum(moved) == 10


def test_a_store_that_stumbles_is_asked_again(server: Server, tmp_path: Path) -> None:
    server.answer = lambda _: (503, {}, b"") if len(server.asked) < 2 else (200, {}, b"content")
    moved: list[int] = []
    assert (
        PlatformClient(server.url, None).transfer.download(f"{server.url}/f", tmp_path / "a" / "f", moved.append) == 7
    )
    assert (tmp_path / "a" / "f").read_bytes() == b"content"
    assert sum(moved) == 7


def test_a_refused_transfer_leaves_nothing_behind(server: Server, tmp_path: Path) -> None:
    server.answer = lambda _: (403, {}, b"expired")
    with pytest.raises(NotFound, match="HTTP 403: expired"):
        PlatformClient(server.url, None).transfer.download(f"{server.url}/f", tmp_path / "f")
    assert list(tmp_path.iterdir()) == []


def test_transfers_stay_on_safe_addresses(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="unsafe"):
        PlatformClient("https://platform.example", None).transfer.download("http://storage.example/f", tmp_path / "f")


def test_a_platform_of_a_private_authority_is_known_by_its_file_alone(tmp_path: Path) -> None:
    ours, another = (PrivateAuthority.made(tmp_path / name, "127.0.0.1") for name in ("ours", "another"))
    server = Server()
    server.say(200, {"user": {"id": "1", "email": "a@b", "name": "a"}})
    target = tmp_path / "file"
    with site(server.take, ours.context()) as server.url:
        with PlatformClient(server.url, "t", ca_file=str(ours.ca_file)) as client:
            assert client.call("GET", "verify")["user"]["email"] == "a@b"  # type: ignore[index]
            assert client.transfer.download(f"{server.url}/file", target) == target.stat().st_size > 0
        for ca_file in ("", str(another.ca_file)):
            with PlatformClient(server.url, "t", ca_file=ca_file) as client:
                with pytest.raises(NetworkError, match="CERTIFICATE_VERIFY_FAILED") as caught:
                    client.call("GET", "verify")
                assert "--ca-file FILE" in (caught.value.hint or "")
    assert len(server.asked) == 2, "nobody else was told the token"
