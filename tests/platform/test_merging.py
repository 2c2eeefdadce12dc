"""Merges over the wire, with a job that the test plays: what is refused, what comes of one, what goes with it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from osmosis.client.files import announce_file
from osmosis.platform import tables
from osmosis.platform.auth.tokens import hash_token
from osmosis.platform.models import service as models
from osmosis.platform.scheduling.job_spec import build_spec
from osmosis.records.base import utc_now
from support.model_files import write_model

from .conftest import Site
from .test_deployments import store as store  # the same models
from .test_models import upload

LEASE = "osj_the-lease-of-a-merge"


def merge(site: Site, adapter: str, expect: int = 200, **wish: Any) -> dict[str, Any]:
    return site.json("POST", f"models/{adapter}/merge", expect=expect, json=wish)


def made(site: Site, run_id: str, expect: int = 200, *, broken: bool = False) -> Any:
    """The job makes the files, and says so."""
    folder = write_model(models.folder_of(site.platform.settings, run_id), numbers=500)
    with site.platform.db.write() as session:
        session.get_one(tables.Merge, run_id).status = "running"
        job = session.query(tables.Job).filter_by(merge_id=run_id).one()
        job.state, job.lease_hash, job.lease_until = "held", hash_token(LEASE), utc_now() + timedelta(seconds=60)
    files = [announce_file(path).to_dict() for path in sorted(folder.iterdir())]
    if broken:
        (folder / "model.safetensors").write_bytes(b"no weights")
    headers = {"Authorization": f"Bearer {LEASE}"}
    answer = site.anonymous.post(f"/api/jobs/{run_id}/model", json={"files": files}, headers=headers)
    assert answer.status_code == expect, answer.text
    if expect == 200:
        end = {"status": "finished"}
        assert site.anonymous.post(f"/api/jobs/{run_id}/finish", json=end, headers=headers).status_code == 200
    return answer.json()


def test_an_adapter_becomes_a_base_model(store: Site) -> None:
    started = merge(store, "multiply-1")
    assert (started["model_name"], started["merged_from"], started["status"]) == (
        "multiply-1-step-4-merged", "multiply-1-step-4", "pending",
    )  # fmt: skip
    assert merge(store, "multiply-1")["id"] == started["id"], "once"
    with store.platform.db.read() as session:
        job = session.query(tables.Job).filter_by(merge_id=started["id"]).one()
        spec = build_spec(session, store.platform.settings, job)
    assert (spec.kind, spec.named_model, spec.secret_names) == ("merge", "multiply-1-step-4", [])
    assert spec.adapter_path.endswith("step-4")
    store.json("GET", "models/base/multiply-1-step-4-merged", expect=404)
    made(store, started["id"])
    assert store.json("GET", f"models/{started['id']}/merge")["status"] == "finished"
    row = store.json("GET", "models/base/multiply-1-step-4-merged")
    assert (row["status"], row["parameters"]) == ("ready", 500)
    assert store.json("POST", "models/multiply-1-step-4-merged/deploy", json={})["status"] == "active"
    store.json("POST", "models/multiply-1-step-4-merged/undeploy", json={})
    assert "already exists" in merge(store, "multiply-1", expect=409)["message"]
    store.json("DELETE", "models/base/multiply-1-step-4-merged", expect=204)
    store.json("GET", "models/multiply-1-step-4-merged/merge", expect=404)
    assert merge(store, "multiply-1")["id"] != started["id"]


@pytest.mark.parametrize(
    ("name", "wish", "status", "words"),
    [
        ("tiny", {}, 409, "no adapter to merge"),
        ("multiply-1", {"name": "tiny"}, 409, "already exists"),
        ("multiply-1", {"name": "../x"}, 400, "is not a name for a model"),
        ("multiply-1", {"dtype": "int4"}, 400, "dtype"),
        ("gone", {}, 404, "no model named"),
    ],
)
def test_what_cannot_be_merged(store: Site, name: str, wish: dict[str, Any], status: int, words: str) -> None:
    assert words in merge(store, name, expect=status, **wish)["message"]


def test_files_that_are_no_model_make_none(store: Site) -> None:
    started = merge(store, "multiply-1-step-2", name="two")
    refused = made(store, started["id"], expect=400, broken=True)
    assert "not a complete safetensors file" in refused["message"]
    store.json("GET", "models/base/two", expect=404)
    assert not models.folder_of(store.platform.settings, started["id"]).exists()


def test_a_merge_is_no_run_that_people_look_at(store: Site, tmp_path: Path) -> None:
    merge(store, "multiply-1")
    assert store.json("GET", "eval-runs")["eval_runs"] == []
    upload(store, write_model(tmp_path / "other"), name="multiply-1-step-2-merged")
    assert "already exists" in merge(store, "multiply-1-step-2", expect=409)["message"]
