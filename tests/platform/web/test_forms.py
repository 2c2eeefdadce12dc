"""Forms follow the rules of the API and show errors in their place."""

from __future__ import annotations

import httpx
import pytest

from osmosis.platform.auth import tokens, users
from osmosis.platform.workspaces import service as workspaces

CONFIG = """
[experiment]
rollout = "multiply"
entrypoint = "main.py"
model_path = "openai/config-model"
dataset = "sums"

[evaluation]
limit = 4

[secrets]
required = []

[advanced]
base_url = "http://127.0.0.1:1/v1"
"""


@pytest.fixture
def configured(ready):
    ready.push({"configs/eval/multiply.toml": CONFIG, "configs/eval/broken.toml": "[experiment", "configs/x.toml": ""})
    return ready


def post(site, path: str, **fields: str) -> httpx.Response:
    answer: httpx.Response = site.http.post(path, data=fields, follow_redirects=False)
    return answer


def test_a_run_is_started_from_a_synced_config(configured) -> None:
    form = configured.http.get("/demo/submit?config=configs/eval/multiply.toml").text
    assert "openai/config-model" in form
    assert "configs/x.toml" not in form
    sent = post(configured, "/demo/submit", config="configs/eval/multiply.toml", branch="main", tags="nightly, form",
                limit="3", n="2", name="from-the-form")  # fmt: skip
    assert sent.status_code == 303, sent.text
    run = configured.json("GET", "eval-runs/from-the-form")
    assert (run["eval_run"]["tags"], run["branch"]) == (["nightly", "form"], "main")
    assert (run["config"]["evaluation"]["limit"], run["config"]["evaluation"]["n"]) == (3, 2)
    assert run["config"]["advanced"]["base_url"] == "http://127.0.0.1:1/v1"
    assert configured.http.get(sent.headers["location"]).status_code == 200


@pytest.mark.parametrize(
    ("model", "name", "base_url"),
    [
        ("openai/other", "openai/other", "http://127.0.0.1:1/v1"),
        ("offline/calculator", "offline/calculator", None),
        ("other@http://127.0.0.1:2/v1", "other", "http://127.0.0.1:2/v1"),
    ],
)
def test_another_model_is_at_the_configs_endpoint_unless_it_says_another(configured, model, name, base_url) -> None:
    sent = post(configured, "/demo/submit", config="configs/eval/multiply.toml", model=model)
    assert sent.status_code == 303, sent.text
    run = configured.json("GET", "eval-runs/" + configured.json("GET", "eval-runs")["eval_runs"][0]["name"])
    assert run["config"]["model_path"] == name
    assert run["config"]["advanced"].get("base_url") == base_url


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"config": "configs/eval/broken.toml"}, "configs/eval/broken.toml"),
        ({"config": "configs/eval/none.toml"}, "no synced config"),
        ({"config": "configs/x.toml"}, "no synced config"),
        ({"config": "../../etc/passwd"}, "no synced config"),
        ({"config": "configs/eval/multiply.toml", "branch": "nowhere"}, "no synced config"),
        ({"config": "configs/eval/multiply.toml", "limit": "many"}, "limit"),
        ({"config": "configs/eval/multiply.toml", "name": "a b"}, "is not a name of a run"),
        ({"config": "configs/eval/multiply.toml", "tags": "a$"}, "is not a tag"),
        ({}, "no synced config"),
    ],
)
def test_what_is_wrong_is_said_above_the_form(configured, fields: dict[str, str], words: str) -> None:
    refused = post(configured, "/demo/submit", **fields)
    assert refused.status_code in (400, 404), refused.text
    assert words in refused.text
    assert "<h1>Start a run</h1>" in refused.text
    assert configured.json("GET", "eval-runs")["eval_runs"] == []


def test_secrets_are_set_and_deleted_and_never_come_back(site) -> None:
    canary = "canary-91ab77"
    assert post(site, "/demo/secrets", name="KEY", value=canary, scope="workspace").status_code == 303
    assert post(site, "/demo/secrets", name="MINE", value=canary).status_code == 303
    page = site.http.get("/demo/secrets").text
    assert ("KEY" in page, "MINE" in page, canary in page) == (True, True, False)
    refused = post(site, "/demo/secrets", name="not a name", value=canary)
    assert (refused.status_code, "<h1>Secrets</h1>" in refused.text, canary in refused.text) == (400, True, False)
    assert post(site, "/demo/secrets/delete", name="KEY", scope="workspace").status_code == 303
    names = [one["name"] for one in site.json("GET", "environment-secrets")["environment_secrets"]]
    assert names == ["MINE"]
    assert post(site, "/demo/secrets/delete", name="KEY", scope="workspace").status_code == 404


def test_a_file_goes_from_the_page_to_a_dataset(site) -> None:
    content = b'{"user_prompt": "1+1", "ground_truth": "2"}\n' * 5
    plan = post(site, "/demo/datasets", name="sums", size=str(len(content)), extension="jsonl").json()
    (part,) = plan["parts"]
    path = part["url"].split("://", 1)[1].partition("/")[2]
    assert site.anonymous.put(f"/{path}", content=content).status_code == 200
    done = post(site, f"/datasets/{plan['id']}/complete", upload=plan["upload"])
    assert done.json() == {"url": f"/datasets/{plan['id']}"}
    assert site.json("GET", "datasets/sums")["status"] == "uploaded"
    twice = post(site, "/demo/datasets", name="sums", size="9", extension="jsonl")
    assert (twice.status_code, "sums" in twice.json()["message"]) == (409, True)
    wrong = post(site, "/demo/datasets", name="x", size="9", extension="exe")
    assert wrong.status_code == 400
    assert wrong.json()["message"]
    assert post(site, f"/datasets/{plan['id']}/delete").status_code == 303
    assert site.http.get("/api/cli/datasets/sums").status_code == 404


def test_the_policy_holds_for_every_form(configured) -> None:
    with configured.platform.db.write() as session:
        owner = users.ensure_owner(session, "x")
        eve = users.create_user(session, "eve", email="eve@localhost", name="Eve")
        row, role = workspaces.by_name(session, owner, "demo")
        workspaces.invite_member(session, row, owner, role, "eve", "viewer")
        token = tokens.issue(session, eve, "test").text
    headers = {"Authorization": f"Bearer {token}"}
    dataset = configured.json("GET", "datasets/sums")["id"]
    for path, fields in (
        ("/demo/submit", {"config": "configs/eval/multiply.toml"}),
        ("/demo/secrets", {"name": "KEY", "value": "x"}),
        ("/demo/secrets/delete", {"name": "KEY"}),
        ("/demo/datasets", {"name": "x", "size": "1", "extension": "jsonl"}),
        (f"/datasets/{dataset}/complete", {}),
        (f"/datasets/{dataset}/delete", {}),
    ):
        answer = configured.anonymous.post(path, data=fields, headers=headers, follow_redirects=False)
        assert answer.status_code == 403, path
    assert configured.anonymous.get("/demo/submit", headers=headers).status_code == 403
