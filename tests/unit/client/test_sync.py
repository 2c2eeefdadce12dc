"""Waiting for Git Sync, against a server on loopback that goes through the states of a sync."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from osmosis.client import PlatformClient
from osmosis.errors import Conflict, PlatformError
from support.receivers import Answer, Asked, site

from .test_calls import Server

HEAD, OLDER = "a" * 40, "b" * 40


def state(status: str | None, commit: str | None = OLDER, error: str | None = None) -> dict[str, Any]:
    events = [{"id": "1", "status": status, "error": error}] if status else []
    return {
        "repository": {"full_name": "o/r"}, "status": status, "default_branch": "main",
        "last_synced_commit_sha": commit, "branches": {"main": commit} if commit else {}, "events": events,
    }  # fmt: skip


class Syncing(Server):
    """Answers one state after the other; the last one again and again."""

    def go_through(self, *states: dict[str, Any]) -> None:
        waiting = list(states)

        def answer(asked: Asked) -> Answer:
            if asked.method == "POST":
                return 202, {}, b"{}"
            body = waiting.pop(0) if len(waiting) > 1 else waiting[0]
            return 200, {}, json.dumps(body).encode()

        self.answer = answer

    @property
    def started(self) -> int:
        """How often it was asked to look."""
        return sum(asked.method == "POST" for asked in self.asked)


@pytest.fixture
def server() -> Iterator[Syncing]:
    made = Syncing()
    with site(made.take) as made.url:
        yield made


def test_a_commit_that_is_there_is_not_waited_for(server: Syncing) -> None:
    server.go_through(state("Success", HEAD))
    with PlatformClient(server.url, "t", identity="o/r") as client:
        assert client.sync.wait_for(HEAD, "main").synced("main") == HEAD
    assert server.started == 0


def test_a_sync_is_started_once_and_followed(server: Syncing) -> None:
    server.go_through(state("Success"), state("Pending"), state("Syncing"), state("Success", HEAD))
    said: list[str] = []
    with PlatformClient(server.url, "t", identity="o/r") as client:
        client.sync.wait_for(HEAD, report=said.append)
    assert (server.started, said) == (1, ["Success", "Pending", "Syncing"])


@pytest.mark.parametrize(
    "before", [state("Success"), state("Failed", error="old"), state(None, None), state("Syncing")]
)
def test_a_sync_that_fails_ends_the_wait_with_its_error(server: Syncing, before: dict[str, Any]) -> None:
    server.go_through(before, state("Failed", error="no such branch"))
    with PlatformClient(server.url, "t", identity="o/r") as client, pytest.raises(PlatformError) as refused:
        client.sync.wait_for(HEAD, "main", timeout_s=30)
    assert refused.value.message == "the sync failed: no such branch"
    assert refused.value.hint.startswith("osmosis sync --status")


def test_a_sync_of_another_commit_says_so(server: Syncing) -> None:
    server.go_through(state("Success"))
    with (
        PlatformClient(server.url, "t", identity="o/r") as client,
        pytest.raises(Conflict, match="synced main, but not"),
    ):
        client.sync.wait_for(HEAD, timeout_s=30)


def test_a_sync_that_takes_too_long_is_given_up(server: Syncing) -> None:
    server.go_through(state("Syncing"))
    with PlatformClient(server.url, "t", identity="o/r") as client, pytest.raises(PlatformError, match=r"after 0\.1 s"):
        client.sync.wait_for(HEAD, timeout_s=0.1)


def test_a_repository_that_is_not_known_is_a_state(server: Syncing) -> None:
    server.say(403, {"error": "no", "code": "GIT_REPOSITORY_NOT_CONNECTED"})
    with PlatformClient(server.url, "t", identity="o/r") as client:
        assert client.sync.state().connected is False
