"""Names of workspaces: what they may look like, and which are the platform's own."""

from __future__ import annotations

import pytest

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
