"""Slow work of one workspace holds up nobody else."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, TimeoutError as NotYet
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from osmosis.errors import NetworkError
from osmosis.platform import tables
from osmosis.platform.git import mirror, sync
from osmosis.platform.git.mirror import RepositoryFolder
from osmosis.platform.objects.parts import sign_url
from osmosis.platform.objects.s3 import S3Objects
from support.platform_app import RunningPlatform, running_platform
from support.platform_data import add_run

pytestmark = pytest.mark.slow

LIMIT = {"OSMOSIS_SYNC_LIMIT_S": "3"}


def _answers(platform: RunningPlatform) -> None:
    """Whoever wants something else is served."""
    for path in ("/health", "/api/cli/verify", "/api/cli/datasets"):
        with httpx.Client(base_url=platform.url, headers=platform.headers, timeout=20) as other:
            assert other.get(path).status_code == 200, path


def _place(platform: RunningPlatform) -> RepositoryFolder:
    with platform.parts.db.read() as session:
        repository = session.scalars(sa.select(tables.Repository)).one()
        place = RepositoryFolder.of(repository, platform.parts.settings)
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
        assert all("another sync of this repository was running" in event["error"] for event in events)
        assert "another sync of this repository was running" in http.get("/demo/repository").text


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


def _silent_store(port: int, limit_s: float) -> dict[str, str]:
    return {
        "OSMOSIS_OBJECTS": "s3://bucket/prefix", "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "OSMOSIS_OBJECTS_LIMIT_S": str(limit_s),
    }  # fmt: skip


def test_an_object_store_that_never_answers_stops_no_request_and_no_poll(tmp_path: Path) -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=500)
    environ = _silent_store(listener.getsockname()[1], 60)
    with running_platform(tmp_path / "data", environ=environ) as platform, ThreadPoolExecutor(80) as many:
        first, _ = (add_run(platform.parts, platform.workspace_id, name, sampled_rows=1) for name in ("one", "two"))
        with httpx.Client(base_url=platform.url, headers=platform.headers, timeout=90) as http:
            new = {"file_name": "sums", "file_size": 10, "extension": "jsonl"}
            dataset = http.post("/api/cli/datasets", json=new).json()["id"]
            signed = sign_url(platform.parts, f"runs/{first}/tokens.jsonl", method="GET")
            with listener:
                waiting = [many.submit(http.get, "/api/cli/eval-runs/one/samples/manifest") for _ in range(40)]
                wanted = {"items": [{"path": "tokens.jsonl", "token": "t"}]}
                waiting.append(many.submit(http.post, "/api/cli/eval-runs/one/samples/download-urls", json=wanted))
                waiting.append(many.submit(http.get, signed))
                waiting.append(many.submit(http.post, f"/api/cli/datasets/{dataset}/abort", json={}))
                waiting.append(many.submit(http.delete, "/api/cli/eval-runs/two"))
                _answers(platform)
                assert http.get("/api/cli/eval-runs/one").status_code == 200
                assert http.get("/demo/repository").status_code == 200
                assert not any(one.done() for one in waiting)
            said = [one.result(90) for one in waiting]
        assert all("the object store" in answer.json()["message"] for answer in said), {a.text for a in said}


def test_a_request_to_an_object_store_takes_no_longer_than_it_may(tmp_path: Path) -> None:
    with _silent_server() as port:
        environ = _silent_store(port, 0.5)
        store = S3Objects("s3://bucket/prefix", tmp_path, environ, limit_s=0.5)
        with pytest.raises(NetworkError, match=r"the object store at .* does not answer"):
            list(store.list("runs/"))


def test_a_sync_that_waits_for_its_turn_is_not_taken_for_one_that_was_cut_off(tmp_path: Path) -> None:
    with running_platform(tmp_path / "data") as platform, ThreadPoolExecutor(2) as many:
        place, db, settings = _place(platform), platform.parts.db, platform.parts.settings

        def requested(status: str = "Pending") -> str:
            with db.write() as session:
                event = sync.add_event(session, session.scalars(sa.select(tables.Repository)).one())
                event.status = status
                return event.id

        def status_of(event_id: str) -> str:
            with db.read() as session:
                return session.get_one(tables.SyncEvent, event_id).status

        cut_off, first, second = requested("Syncing"), requested(), requested()
        with mirror.locked(place):
            waits = many.submit(sync.run, db, settings, first)
            with pytest.raises(NotYet):
                waits.result(0.3)
            assert status_of(first) == "Pending"
        waits.result(60)
        with db.write() as session:  # as if it had not had its turn yet
            session.get_one(tables.SyncEvent, first).status = "Pending"
        sync.run(db, settings, second)
        assert (status_of(cut_off), status_of(first)) == ("Failed", "Pending")
