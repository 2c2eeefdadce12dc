"""Deployments over the wire, without a worker: who may deploy and ask what, and what each refusal says."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from osmosis.platform import tables
from osmosis.platform.auth import tokens, users
from osmosis.platform.auth.rate_limits import PER_MINUTE, RateLimits
from osmosis.platform.auth.tokens import hash_token
from osmosis.platform.models import deployments, service as models
from osmosis.platform.scheduling.job_spec import build_spec
from osmosis.platform.workspaces import service as workspaces
from osmosis.records.base import utc_now
from support.model_files import write_model

from .conftest import Site
from .test_models import checkpoint, train, upload

LEASE = "osj_the-lease-of-an-eval"


def fill(site: Site, folder: Path) -> Site:
    """A base model `tiny`, and two checkpoints of `multiply-1`."""
    upload(site, write_model(folder / "tiny"))
    run = train(site)
    for step, reward in ((2, 0.5), (4, 0.75)):
        checkpoint(site, run["id"], step, reward)
    site.json("POST", f"training-runs/{run['id']}/stop", json={})
    return site


@pytest.fixture
def store(ready: Site, tmp_path: Path) -> Site:
    return fill(ready, tmp_path)


@pytest.fixture(scope="module")
def deployed(shared: Site, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The same with `multiply-1` deployed, for tests that only ask."""
    fill(shared, tmp_path_factory.mktemp("models"))
    deploy(shared, "multiply-1")
    return shared


def hold(session: Session, run_id: str) -> None:
    """Its job is done by somebody who has the lease `LEASE`."""
    job = session.query(tables.Job).filter_by(run_id=run_id).one()
    job.state, job.lease_hash, job.lease_until = "held", hash_token(LEASE), utc_now() + timedelta(seconds=60)


def deploy(site: Site, name: str, expect: int = 200) -> dict[str, Any]:
    return site.json("POST", f"models/{name}/deploy", expect=expect, json={})


def ask(site: Site, model: str, *, token: str | None = None) -> tuple[int, str, str]:
    """Status, code and message: nothing answers here, so there always is an error."""
    client = site.anonymous if token is not None else site.http
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
    answer = client.post("/v1/chat/completions", json=body, headers=headers)
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["message"]


def served(site: Site, *, token: str | None = None) -> set[str]:
    client, headers = (site.anonymous, {"Authorization": f"Bearer {token}"}) if token else (site.http, {})
    return {one["id"] for one in client.get("/v1/models", headers=headers).json()["data"]}


def test_a_checkpoint_is_deployed_under_every_name_it_has(store: Site) -> None:
    made = deploy(store, "multiply-1")
    assert (made["model_name"], made["base_model"]) == ("multiply-1-step-4", "tiny"), "the best"
    assert (made["status"], made["state"]) == ("active", "starting")
    assert deploy(store, "multiply-1-step-4")["id"] == made["id"], "once"
    listed = store.json("GET", "models/lora")
    states = {row["model_name"]: row["deployment_status"] for row in listed["models"]}
    assert states == {"multiply-1-step-4": "active", "multiply-1-step-2": "inactive"}
    assert (listed["active_deployments"], listed["max_active_deployments"]) == (1, 2)
    row = store.json("GET", "models/multiply-1-step-4")
    assert (row["inference_model"], row["deployed_by"]) == ("tiny:multiply-1-step-4", "local")
    assert row["inference_url"].endswith("/v1")
    for name in ("multiply-1", "multiply-1-step-4", "osmosis/multiply-1-step-4", "tiny:multiply-1-step-4"):
        assert ask(store, name)[:2] == (503, "model_loading")
    assert store.json("POST", "models/multiply-1/undeploy", json={})["status"] == "inactive"
    assert ask(store, "multiply-1")[:2] == (404, "model_not_deployed")


def test_its_job_is_told_base_and_adapter(store: Site) -> None:
    deploy(store, "multiply-1")
    with store.platform.db.read() as session:
        run = session.query(tables.Deployment).one()
        job = session.query(tables.Job).filter_by(deployment_id=run.id).one()
        spec = build_spec(session, store.platform.settings, job)
        known = models.resolve_served(session, store.platform.settings, run.workspace_id, "osmosis/multiply-1-step-4")
    assert (spec.kind, spec.model_path, spec.adapter_path) == ("serving", known.base, known.adapter)
    assert spec.adapter_path.endswith("step-4")
    assert spec.secret_names == []


def test_there_is_room_for_so_many(store: Site) -> None:
    deploy(store, "tiny")
    deploy(store, "multiply-1-step-2")
    refused = deploy(store, "multiply-1-step-4", expect=409)
    assert (refused["code"], refused["active_deployments"]) == ("deployment_conflict", 2)
    assert "OSMOSIS_MAX_DEPLOYMENTS" in refused["hint"]
    store.json("POST", "models/tiny/undeploy", json={})
    deploy(store, "multiply-1-step-4")


def test_what_is_deployed_is_not_deleted(store: Site) -> None:
    deploy(store, "multiply-1")
    for path, words in (
        ("models/multiply-1-step-4", "it is deployed"),
        ("models/base/tiny", "its adapter 'multiply-1-step-4' is deployed"),
        ("training-runs/multiply-1", "its checkpoint 'multiply-1-step-4' is deployed"),
    ):
        refused = store.json("DELETE", path, expect=409)
        assert words in refused["message"]
        assert refused["hint"] == "osmosis model undeploy multiply-1-step-4"
    store.json("POST", "models/multiply-1/undeploy", json={})
    store.json("DELETE", "training-runs/multiply-1", expect=204)


def test_deployments_are_no_runs_that_people_look_at(store: Site) -> None:
    made = deploy(store, "tiny")
    assert store.json("GET", "eval-runs")["eval_runs"] == []
    assert [run["name"] for run in store.json("GET", "training-runs")["training_runs"]] == ["multiply-1"]
    assert store.json("GET", "deployments/tiny")["deployment"]["id"] == made["id"]
    assert store.json("GET", "models/tiny/logs")["logs"][0]["message"] == "deployed by local"
    assert store.json("GET", "models/multiply-1/logs", expect=404)["hint"] == "osmosis model deploy multiply-1"


def test_a_name_that_nothing_answers_to_says_what_to_type(store: Site) -> None:
    deploy(store, "tiny")
    for model, words in (
        ("tinny", "did you mean tiny?"),
        ("gpt-5", "deployed: tiny"),
        ("multiply-1-step-2", "osmosis model deploy multiply-1-step-2"),
    ):
        status, _, message = ask(store, model)
        assert (status, words in message) == (404, True), message


def test_a_body_without_a_model_is_the_callers_fault(store: Site) -> None:
    for content in (b"", b"[]", b'{"messages": []}'):
        answer = store.http.post("/v1/chat/completions", content=content)
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert store.anonymous.post("/v1/chat/completions", content=b" " * (1 << 17)).status_code == 401


def test_only_members_reach_a_deployment(store: Site) -> None:
    deploy(store, "tiny")
    with store.platform.db.write() as session:
        other = users.create_user(session, "eve", email="eve@localhost", name="Eve")
        workspaces.create(session, other, "hers")
        token = tokens.issue(session, other, "hers").text
    assert ask(store, "tiny", token=token)[:2] == (404, "model_not_found")
    assert ask(store, "tiny", token="")[:2] == (401, "auth_header_missing")
    assert ask(store, "tiny", token="osm_invented")[:2] == (401, "token_invalid")
    with store.platform.db.write() as session:
        owner = session.query(tables.User).filter_by(handle="local").one()
        for_git = tokens.issue(session, owner, "git", kind="personal", scopes=["git"]).text
    assert ask(store, "tiny", token=for_git)[:2] == (403, "token_scope_missing")


def test_a_lease_reaches_the_model_of_its_run_alone(store: Site) -> None:
    deploy(store, "tiny")
    body = {
        "experiment_config": {
            "rollout": "multiply", "entrypoint": "main.py", "model_path": "osmosis/tiny", "dataset": "sums",
        },
        "evaluation_config": {"limit": 4},
    }  # fmt: skip
    run_id = store.json("POST", "eval-runs", json=body)["id"]
    assert ask(store, "osmosis/tiny", token=LEASE)[:2] == (401, "lease_lost")
    with store.platform.db.write() as session:
        session.get_one(tables.Run, run_id).status = "running"
        hold(session, run_id)
    assert ask(store, "osmosis/tiny", token=LEASE)[:2] == (503, "model_loading")
    assert ask(store, "osmosis/multiply-1", token=LEASE)[0] == 403
    deploy(store, "multiply-1")
    with store.platform.db.write() as session:
        for run in session.query(tables.Deployment):
            run.status, run.progress = "running", {"stage": "serving", "endpoint": "http://127.0.0.1:9/v1"}
    assert served(store) == {"tiny", "multiply-1-step-4"}
    assert served(store, token=LEASE) == {"tiny"}
    with store.platform.db.write() as session:
        for run in session.query(tables.Deployment):
            run.status, run.progress = "pending", None
    object.__setattr__(store.platform, "rates", RateLimits(per_minute={**PER_MINUTE, "question": 2}))
    people = [ask(store, "tiny")[:2] for _ in range(3)]
    assert people == [(503, "model_loading")] * 2 + [(429, "rate_limited")], "a person asks so often"
    jobs = [ask(store, "osmosis/tiny", token=LEASE)[0] for _ in range(3)]
    assert jobs == [503] * 3, "a run, as often as its quota lets it"


def test_an_evaluation_asks_a_deployment_that_answers(store: Site) -> None:
    deploy(store, "multiply-1")
    with store.platform.db.write() as session:
        run = session.query(tables.Deployment).one()
        of_eval = tables.Run(workspace_id=run.workspace_id, kind="eval", model_path="osmosis/multiply-1")
        assert not deployments.answers(session, of_eval)
        run.status = "running"
        run.progress = {"stage": "serving", "endpoint": "http://127.0.0.1:9/v1"}
        assert deployments.answers(session, of_eval)
        run.stop_requested_at = utc_now()
        assert not deployments.answers(session, of_eval)


def test_a_job_cannot_send_questions_anywhere_else(store: Site) -> None:
    deploy(store, "tiny")
    with store.platform.db.write() as session:
        run = session.query(tables.Deployment).one()
        run.status = "running"
        run.progress = {"stage": "serving", "endpoint": "http://192.0.2.7:80/v1"}
    assert ask(store, "tiny")[0] == 403


@pytest.mark.parametrize("key", ["Authorization", "x-api-key", "x-goog-api-key"])
@pytest.mark.parametrize("path", ["messages", "messages/count_tokens", "responses", "responses/input_tokens"])
def test_other_apis_reach_deployments_and_have_their_own_errors(deployed: Site, path: str, key: str) -> None:
    token = deployed.http.headers["Authorization"].removeprefix("Bearer ")
    header = {key: f"Bearer {token}" if key == "Authorization" else token}
    for model, status in (("multiply-1", 503), ("nothing", 404)):
        answer = deployed.anonymous.post(f"/v1/{path}", json={"model": model}, headers=header)
        body = answer.json()
        assert answer.status_code == status
        if path.startswith("messages"):
            kinds = {503: "overloaded_error", 404: "not_found_error"}
            assert (body["type"], body["error"]["type"]) == ("error", kinds[status])
        else:
            assert body["error"]["code"] == ("server_is_overloaded" if status == 503 else "model_not_found")
    assert deployed.anonymous.post(f"/v1/{path}", json={"model": "x"}).status_code == 401


@pytest.mark.parametrize("method", ["generateContent", "streamGenerateContent", "countTokens"])
def test_googles_api_reaches_deployments_and_has_its_own_errors(deployed: Site, method: str) -> None:
    token = deployed.http.headers["Authorization"].removeprefix("Bearer ")
    header = {"x-goog-api-key": token}
    for name, status, word in (("multiply-1", 503, "UNAVAILABLE"), ("osmosis/nothing", 404, "NOT_FOUND")):
        answer = deployed.anonymous.post(f"/v1beta/models/{name}:{method}", json={"contents": []}, headers=header)
        assert (answer.status_code, answer.json()["error"]["status"]) == (status, word)
    unknown = deployed.anonymous.post("/v1beta/models/multiply-1:embedContent", json={}, headers=header)
    assert (unknown.status_code, "generateContent" in unknown.text) == (404, True)
    assert deployed.anonymous.post(f"/v1beta/models/x:{method}", json={}).json()["error"]["status"] == "UNAUTHENTICATED"


@pytest.mark.parametrize("key", ["Authorization", "x-api-key", "x-goog-api-key"])
def test_a_large_call_is_read_with_any_clients_key(deployed: Site, key: str) -> None:
    token = deployed.http.headers["Authorization"].removeprefix("Bearer ")
    header = {key: f"Bearer {token}" if key == "Authorization" else token}
    for path in ("/v1/messages", "/v1beta/models/nothing:generateContent"):
        body = {"model": "nothing", "system": "x" * (1 << 17)}
        assert deployed.anonymous.post(path, json=body, headers=header).status_code == 404
        assert deployed.anonymous.post(path, json=body).status_code == 401


def test_a_checkpoint_with_every_weight_is_a_model_of_its_own(ready: Site, tmp_path: Path) -> None:
    upload(ready, write_model(tmp_path / "tiny"))
    run = train(ready, advanced={"tune": "full"})
    folder = write_model(ready.platform.settings.models_dir / "runs" / run["id"] / "step-000002")
    (folder / "optimizer.safetensors").write_bytes(b"state")
    with ready.platform.db.write() as session:
        path, name = ready.platform.settings.stored(folder), f"{run['name']}-step-2"
        session.add(
            tables.Checkpoint(run_id=run["id"], name=name, step=2, status="ready", base_model="tiny", path=path)
        )
    refused = train(ready, expect=400, model_path="multiply-1")["issues"]
    assert [(issue["key"], issue["message"]) for issue in refused] == [
        ("advanced.tune", "tune is 'lora', and every weight of multiply-1-step-2 was trained")
    ]
    goes_on = train(ready, model_path="multiply-1", advanced={"tune": "full"})
    deploy(ready, "multiply-1")
    ready.json("POST", "models/multiply-1/merge", json={})
    with ready.platform.db.read() as session:
        specs = {job.id: build_spec(session, ready.platform.settings, job) for job in session.query(tables.Job)}
        served = {spec.kind: (spec.model_path, spec.adapter_path) for spec in specs.values() if spec.kind != "training"}
    assert served == dict.fromkeys(("serving", "merge"), (str(folder), ""))
    assert [spec.folders for spec in specs.values() if spec.run_id == goes_on["id"]] == [["model"]]
    assert ready.json("GET", "models/multiply-1")["tune"] == "full"
    listed = ready.json("GET", "models/multiply-1/files")
    names = {file["path"] for file in listed["files"]}
    assert (listed["type"], names) == (
        "full",
        {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"},
    )
