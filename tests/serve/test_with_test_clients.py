"""A server and the mock trainer under test clients, as agents' own test suites use them."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from osmosis.serve.server.delivery import Post, Spool, spool_folder
from osmosis.serve.server.v02 import create_app
from osmosis.testing.mock_trainer import (
    RolloutCompletionTracker,
    create_mock_trainer_app,
    patch_httpx_for_mock_trainer,
)

from .test_v02 import Adds, request


def test_init_to_completion_without_a_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = RolloutCompletionTracker()
    with TestClient(create_mock_trainer_app(tracker)) as trainer:
        patch_httpx_for_mock_trainer(trainer, monkeypatch)
        with TestClient(create_app(Adds(), spool_dir=tmp_path, environ={})) as server:
            answer = server.post("/v1/rollout/init", json=request("r1", "http://trainer.invalid"))
            assert answer.status_code == 202
            assert tracker.wait(10)
    [response] = tracker.responses
    assert response["status"] == "COMPLETED"
    assert response["metrics"]["num_tool_calls"] == 1


def test_real_results_never_end_in_a_mock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path)
    spool.add(Post("real", "http://trainer.invalid/v1/rollout/completed", '{"rollout_id": "real"}'))
    spool.close()
    tracker = RolloutCompletionTracker()
    with TestClient(create_mock_trainer_app(tracker)) as trainer:
        patch_httpx_for_mock_trainer(trainer, monkeypatch)
        with TestClient(create_app(Adds(), spool_dir=tmp_path, environ={})) as server:
            server.post("/v1/rollout/init", json=request("r1", "http://trainer.invalid"))
            assert tracker.wait(10)
    assert [response["rollout_id"] for response in tracker.responses] == ["r1"]
    assert len(list(tmp_path.glob("server-*/*.json"))) == 1


def test_a_result_is_sent_again_by_its_own_server_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"_OSMOSIS_ROLLOUT_ARTIFACT_ROOT": str(tmp_path / "root")}
    for name in ("mine", "other"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    spool = Spool(spool_folder(tmp_path / "root" / "undelivered", Adds.name))
    kept = spool.add(Post("real", "http://127.0.0.1:9/v1/rollout/completed", '{"rollout_id": "real"}'))
    spool.close()
    left = {}
    for folder in ("other", "mine"):
        monkeypatch.chdir(tmp_path / folder)
        app = create_app(Adds(), environ=environ)
        with TestClient(app):
            left[folder] = app.state.runtime.delivery.has("real")
    assert left == {"other": False, "mine": True}
    assert kept.exists()
