"""Slow work of one workspace holds up nobody else."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import sqlalchemy as sa

from osmosis.platform import tables
from osmosis.platform.gitsync import mirror
from osmosis.platform.gitsync.mirror import MirrorPlace
from osmosis.testing.platform_app import RunningPlatform, running_platform

LIMIT = {"OSMOSIS_SYNC_LIMIT_S": "3"}


def _answers(platform: RunningPlatform) -> None:
    """Whoever wants something else is served."""
    for path in ("/health", "/api/cli/verify", "/api/cli/datasets"):
        with httpx.Client(base_url=platform.url, headers=platform.headers, timeout=20) as other:
            assert other.get(path).status_code == 200, path


def _place(platform: RunningPlatform) -> MirrorPlace:
    with platform.parts.db.read() as session:
        repository = session.scalars(sa.select(tables.Repository)).one()
        place = MirrorPlace.of(repository, platform.parts.settings)
    mirror.prepare(place, platform.parts.settings)
    return place


@contextmanager
def _silent_server() -> Iterator[int]:
    """The port of a git host that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=200) as listener:
        yield listener.getsockname()[1]


def _connect(platform: RunningPlatform, port: int) -> None:
    """The repository is elsewhere from now on."""
    with platform.parts.db.write() as session:
        repository = session.scalars(sa.select(tables.Repository)).one()
        repository.kind, repository.trusted = "external", True
        repository.url = f"http://127.0.0.1:{port}/team/code.git"


def test_many_syncs_that_wait_for_a_lock_stop_no_request(tmp_path: Path) -> None:
    with running_platform(tmp_path / "data") as platform, ThreadPoolExecutor(60) as many:
        place = _place(platform)
        with httpx.Client(base_url=platform.url, headers=platform.headers, timeout=60) as http:
            with mirror.locked(place):
                waiting = [many.submit(http.post, "/api/cli/sync?wait=true") for _ in range(50)]
                pushes = [many.submit(http.post, "/demo/repository/sync") for _ in range(5)]
                _answers(platform)
                assert not any(one.done() for one in waiting)
            for one in waiting:
                assert one.result(60).status_code == 202, one.result().text
            assert all(one.result(60).status_code == 303 for one in pushes)


def test_a_sync_that_never_gets_its_turn_ends_with_an_event_that_says_so(tmp_path: Path) -> None:
    with (
        running_platform(tmp_path / "data", environ=LIMIT) as platform,
        ThreadPoolExecutor(20) as many,
        httpx.Client(base_url=platform.url, headers=platform.headers, timeout=60) as http,
    ):
        with mirror.locked(_place(platform)):
            waiting = [many.submit(http.post, "/api/cli/sync?wait=true") for _ in range(12)]
            _answers(platform)
            events = [one.result(60).json()["event"] for one in waiting]
        assert {event["status"] for event in events} == {"Failed"}
        assert all("another sync of this repository was at work" in event["error"] for event in events)
        assert "another sync of this repository was at work" in http.get("/demo/repository").text


def test_a_remote_that_never_answers_ends_syncs_and_submits_and_holds_up_nobody(tmp_path: Path) -> None:
    content = b'{"user_prompt": "1 x 1", "ground_truth": "1"}\n' * 4
    commit = "0123456789" * 4
    config = {
        "experiment_config": {
            "rollout": "multiply", "entrypoint": "main.py", "dataset": "sums", "model_path": "openai/gpt-4o-mini",
            "commit_sha": commit,
        },
    }  # fmt: skip
    with (
        running_platform(tmp_path / "data", environ=LIMIT) as platform,
        _silent_server() as port,
        ThreadPoolExecutor(40) as many,
        httpx.Client(base_url=platform.url, headers=platform.headers, timeout=60) as http,
    ):
        _place(platform)
        new = {"file_name": "sums", "file_size": len(content), "extension": "jsonl"}
        made = http.post("/api/cli/datasets", json=new).json()
        assert httpx.put(made["upload"]["presigned_url"], content=content).status_code == 200
        assert http.post(f"/api/cli/datasets/{made['id']}/complete", json={}).status_code == 200
        _connect(platform, port)
        syncs = [many.submit(http.post, "/api/cli/sync?wait=true") for _ in range(10)]
        submits = [many.submit(http.post, "/api/cli/eval-runs", json=config) for _ in range(20)]
        _answers(platform)
        for one in syncs:
            event = one.result(60).json()["event"]
            assert event["status"] == "Failed"
            assert "longer than" in event["error"] or "another sync" in event["error"], event["error"]
        for one in submits:
            answer = one.result(60)
            assert answer.status_code == 400, answer.text
            assert "does not answer" in answer.json()["message"]
