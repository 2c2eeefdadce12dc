"""A row and a figure over the runs of a workspace: by the API and on the page."""

from __future__ import annotations

from osmosis.platform import tables
from osmosis.platform.auth import tokens, users
from support.platform_data import add_rollouts, add_run, rollout


def test_a_row_over_runs(site) -> None:
    for name, reward in (("one", 1.0), ("two", 0.0), ("three", 0.0)):
        run = add_run(site.platform, site.workspace_id, name, commit_sha=name * 8)
        add_rollouts(site.platform, run, [rollout(4, n, reward, row_key="k") for n in range(2)])
    found = site.json("GET", "history?row=k")
    assert [(one["name"], one["row"]["passed"]) for one in found["runs"]] == [("one", 2), ("two", 0), ("three", 0)]
    page = site.http.get("/history?row=k").text
    assert "since <a" in page
    assert page.index(">two</a>") < page.index("<table"), "it is the second run since which the row fails"
    assert site.json("GET", "history?row=other")["runs"][0].get("row") is None
    assert site.json("GET", "history?metric=nothing&model=x")["runs"] == []


def test_nobody_sees_the_runs_of_another_workspace(site) -> None:
    add_run(site.platform, site.workspace_id, "mine")
    with site.platform.db.write() as session:
        stranger = users.create_user(session, "eve", email="eve@localhost", name="Eve")
        token = tokens.issue(session, stranger, "test").text
        assert session.query(tables.Run).count() == 1
    shown = site.anonymous.get("/history", headers={"Authorization": f"Bearer {token}"})
    assert (shown.status_code, "mine" in shown.text) == (200, False)
