"""The pages of models: where one comes from, what it scored, deployed and undeployed by forms of the page alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import sqlalchemy as sa

from osmosis.platform import tables
from osmosis.platform.git import repositories, sync
from osmosis.platform.workspaces import service as workspaces
from support.model_files import write_model
from support.platform_data import add_run, report

from .conftest import Site
from .test_deployments import store as store  # a base model and two checkpoints
from .test_models import upload


def shown(site: Site, path: str) -> str:
    """The text of a page, one space between words."""
    answer = site.http.get(path)
    assert answer.status_code == 200, answer.text
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", answer.text))


def id_of(site: Site, name: str) -> str:
    kind = "models/base/" if name == "tiny" else "models/"
    return str(site.json("GET", f"{kind}{name}")["id"])


def test_the_list_leads_to_each(store: Site) -> None:
    text = store.http.get("/demo/models").text
    for name in ("tiny", "multiply-1-step-2", "multiply-1-step-4"):
        assert f'<a href="/models/{id_of(store, name)}">{name}</a>' in text


def test_the_list_loads_only_the_runs_of_its_checkpoints(store: Site) -> None:
    with store.platform.db.write() as session:
        owner = session.query(tables.User).first()
        other = workspaces.create(session, owner, "other")
    add_run(store.platform, other.id, "elsewhere-1", kind="training")
    loaded: set[str] = set()

    def note_run(run: tables.Run, _: object) -> None:
        loaded.add(run.name)

    sa.event.listen(tables.Run, "load", note_run)
    try:
        assert "multiply-1-step-2" in store.http.get("/demo/models").text
    finally:
        sa.event.remove(tables.Run, "load", note_run)
    assert loaded == {"multiply-1"}


def test_a_checkpoint_says_where_it_comes_from_and_what_it_scored(store: Site) -> None:
    body = {
        "experiment_config": {
            "rollout": "multiply", "entrypoint": "main.py", "model_path": "osmosis/multiply-1", "dataset": "sums",
        },
        "evaluation_config": {"limit": 4},
    }  # fmt: skip
    run_id = store.json("POST", "eval-runs", json=body)["id"]
    with store.platform.db.write() as session:
        session.get_one(tables.Run, run_id).report = report().to_dict()
    text = shown(store, f"/models/{id_of(store, 'multiply-1-step-4')}")
    assert "Kind adapter (LoRA) Base model tiny From run multiply-1 , step 4 Reward 0.750" in text
    assert "multiply-2 pending 0.700" in text.lower()
    assert "Not deployed. osmosis model deploy multiply-1-step-4" in text
    assert "multiply-1-step-4 0.750" in shown(store, f"/models/{id_of(store, 'tiny')}")


def test_a_form_deploys_and_undeploys(store: Site) -> None:
    page = f"/models/{id_of(store, 'tiny')}"
    assert store.http.post(f"{page}/deploy", follow_redirects=False).status_code == 303
    text = shown(store, page)
    assert "Undeploy" in text
    assert "curl" in text
    assert store.json("GET", "models/base/tiny")["deployment_status"] == "active"
    assert store.http.post(f"{page}/undeploy", follow_redirects=False).status_code == 303
    assert store.json("GET", "models/base/tiny")["deployment_status"] == "inactive"
    assert store.http.post(f"{page}/sell").status_code == 404


def test_a_deployment_is_followed_by_events_until_it_has_started(store: Site) -> None:
    page = f"/models/{id_of(store, 'tiny')}"
    assert "hx-sse:connect" not in store.http.get(page).text, "nothing moves"
    store.json("POST", "models/tiny/deploy", json={})
    text = store.http.get(page).text
    assert f'hx-sse:connect="{page}/events"' in text
    assert '<meta http-equiv="refresh"' not in re.sub(r"<noscript>.*?</noscript>", "", text)
    with store.platform.db.write() as session:
        run = session.query(tables.Deployment).one()
        run.status = "failed"
    said = store.http.get(f"{page}/events").text
    assert said.endswith("event: end\ndata: over\n\n")
    assert "Not deployed" in said
    assert store.http.get("/models/nothing/events").status_code == 404


def test_the_repository_is_followed_by_events_while_it_is_synced(store: Site) -> None:
    with store.platform.db.write() as session:
        repository = repositories.get_for_workspace(session, session.query(tables.Workspace).one().id)
        event = sync.add_event(session, repository)
    assert 'hx-sse:connect="/demo/repository/events?branch="' in store.http.get("/demo/repository").text
    with store.platform.db.write() as session:
        session.get_one(tables.SyncEvent, event.id).status = "Success"
    text = store.http.get("/demo/repository").text
    assert "hx-sse:connect" not in text
    assert 'http-equiv="refresh"' not in text
    assert store.http.get("/demo/repository/events").text.endswith("event: end\ndata: over\n\n")


def test_why_a_deployment_failed_is_said(store: Site) -> None:
    store.json("POST", "models/tiny/deploy", json={})
    with store.platform.db.write() as session:
        run = session.query(tables.Deployment).one()
        run.status = "failed"
        run.failure = {"phase": "setup", "category": "unknown", "message": "it does <not> fit", "fix": "a smaller one"}
    text = store.http.get(f"/models/{id_of(store, 'tiny')}").text
    assert "it does &lt;not&gt; fit" in text
    assert "a smaller one" in text
    assert store.http.get(f"/runs/{run.id}").status_code == 404, "a deployment is no run with rollouts"


def test_a_stranger_and_a_forged_form_get_nothing(store: Site, tmp_path: Path) -> None:
    page = f"/models/{id_of(store, 'tiny')}"
    assert store.anonymous.get(page, follow_redirects=False).status_code == 303
    cookie = store.json("GET", "verify") and store.http.headers["Authorization"].partition(" ")[2]
    store.anonymous.cookies.set("osmosis_session", cookie)
    assert store.anonymous.get(page).status_code == 200
    refused = store.anonymous.post(f"{page}/deploy", data={"csrf": "forged"})
    assert refused.status_code == 403
    given = re.search(r'name="csrf" value="([^"]+)"', store.anonymous.get(page).text)
    assert given is not None
    assert store.anonymous.post(f"{page}/deploy", data={"csrf": given[1]}).status_code == 200
    assert store.json("GET", "models/base/tiny")["deployment_status"] == "active"
    assert store.http.get("/models/none").status_code == 404


@pytest.mark.parametrize("page", ["/demo/models"])
def test_a_workspace_without_models_says_how_to_get_one(shared: Site, page: str) -> None:
    text = shown(shared, page)
    assert "osmosis model upload FOLDER" in text
    assert "osmosis train submit CONFIG" in text


def test_a_merged_model_names_its_adapter(store: Site, tmp_path: Path) -> None:
    row = upload(store, write_model(tmp_path / "merged"), name="merged")
    with store.platform.db.write() as session:
        adapter = session.query(tables.Checkpoint).filter_by(step=4).one()
        workspace = session.get_one(tables.BaseModel, row["id"]).workspace_id
        session.add(
            tables.Merge(
                id=row["id"],
                workspace_id=workspace,
                name="merged",
                status="finished",
                adapter=adapter.name,
                dtype="auto",
            )
        )
    assert (
        f'Merged from</dt><dd><a href="/models/{adapter.id}">{adapter.name}'
        in store.http.get(f"/models/{row['id']}").text
    )


def test_a_viewer_sees_and_changes_nothing(store: Site) -> None:
    page = f"/models/{id_of(store, 'tiny')}"
    with store.platform.db.write() as session:
        session.query(tables.Member).update({"role": "viewer"})
    assert "<button" not in store.http.get(page).text.partition("<main")[2]
    assert store.http.post(f"{page}/deploy").status_code == 403
    assert store.json("POST", "models/multiply-1/merge", expect=403, json={})["code"] == "ROLE_MISSING"
