"""Workspaces: which names they may have, and what renaming and deleting one means for what is of it."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from osmosis.platform import tables
from osmosis.records.api.workspaces import RESERVED, WORKSPACE_NAME


@pytest.mark.parametrize("name", ["runs", "api", "git", "login", "static", "demo.git"])
def test_a_name_that_the_platform_uses_itself_is_refused(shared, name) -> None:
    refused = shared.json("POST", "workspaces", expect=400, json={"name": name})
    assert refused["code"] == "VALIDATION"
    assert "own addresses use it" in refused["message"]
    assert refused["field"] == "name"


def test_every_first_word_of_an_address_is_reserved(shared) -> None:
    words = {route.path.split("/")[1] for route in shared.anonymous.app.routes}
    possible = {word for word in words if WORKSPACE_NAME.match(word)}
    assert {"runs", "api", "git", "health"} <= possible
    assert possible <= RESERVED


def test_a_name_that_only_begins_like_one_is_free(site) -> None:
    assert site.json("POST", "workspaces", json={"name": "runs-of-mine"})["name"] == "runs-of-mine"


EXPERIMENT = {"rollout": "multiply", "entrypoint": "main.py", "model_path": "offline/x", "dataset": "sums"}
RUN = {"experiment_config": EXPERIMENT, "evaluation_config": {"limit": 4}}


def test_a_renamed_workspace_keeps_what_is_of_it(ready) -> None:
    run = ready.json("POST", "eval-runs", json=RUN)["name"]
    before = ready.json("GET", "workspaces")["workspaces"]
    ready.json("POST", "workspaces", json={"name": "other"})
    assert ready.http.patch("/api/cli/workspaces/demo", json={"name": "other"}).status_code == 409
    assert ready.http.patch("/api/cli/workspaces/demo", json={"name": "api"}).status_code == 400
    renamed = ready.json("PATCH", "workspaces/demo", json={"name": "demo-2"})
    assert renamed == {**before[0], "name": "demo-2"}
    ready.http.headers["X-Osmosis-Workspace"] = "demo-2"
    assert ready.json("GET", f"eval-runs/{run}")["eval_run"]["name"] == run


def test_a_workspace_is_deleted_with_all_that_is_of_it_once_nothing_runs(ready) -> None:
    run = ready.json("POST", "eval-runs", json=RUN)["name"]
    refused = ready.json("DELETE", "workspaces/demo", expect=409)
    assert run in refused["message"]
    ready.json("POST", f"eval-runs/{run}/stop")
    ready.json("POST", "workspaces", json={"name": "other"})
    ready.json("DELETE", "workspaces/demo")
    assert [row["name"] for row in ready.json("GET", "workspaces")["workspaces"]] == ["other"]
    with ready.platform.db.read() as session:
        for table in (tables.Run, tables.Dataset, tables.Secret):
            assert session.scalar(sa.select(sa.func.count()).select_from(table)) == 0
        [repository] = session.scalars(sa.select(tables.Repository.full_name))
        assert repository.endswith("/other")
        deleted = session.scalars(sa.select(tables.AuditEntry).filter_by(action="workspace.delete")).one()
        assert deleted.target == "demo"
