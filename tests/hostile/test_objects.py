"""A signed address opens one object for one method until its time: whatever else is made of it opens nothing."""

import time
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from osmosis.platform.auth import tokens, users
from osmosis.platform.objects.parts import sign_url
from osmosis.platform.workspaces import service as workspaces
from support.platform_app import RunningPlatform, running_platform
from support.platform_data import add_run

ROWS = b'{"user_prompt": "1 x 1", "ground_truth": "1"}\n' * 5


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    with running_platform(tmp_path_factory.mktemp("objects") / "data") as running:
        yield running


def upload(platform: RunningPlatform, headers: dict[str, str], name: str) -> tuple[str, str]:
    """Its id, and the address to which its one part was sent."""
    with httpx.Client(base_url=f"{platform.url}/api/cli/", headers=headers, timeout=60) as http:
        new = {"file_name": name, "file_size": len(ROWS), "extension": "jsonl"}
        made = http.post("datasets", json=new).json()
        address = made["upload"]["presigned_url"]
        assert httpx.put(address, content=ROWS).status_code == 200
        assert http.post(f"datasets/{made['id']}/complete", json={}).status_code == 200
        return made["id"], address


def test_an_address_opens_what_it_was_signed_for(platform: RunningPlatform) -> None:
    with platform.parts.db.write() as session:
        other = users.create_user(session, "mallory", email="m@localhost", name="Mallory")
        workspaces.create(session, other, "elsewhere")
        hers = {
            "Authorization": f"Bearer {tokens.issue(session, other, 'test').text}",
            "X-Osmosis-Workspace": "elsewhere",
        }
    secret_id, _ = upload(platform, platform.headers, "secret")
    own_id, sent_to = upload(platform, hers, "own")
    run_id = add_run(platform.parts, platform.workspace_id, "one", sampled_rows=1)
    answer = httpx.get(f"{platform.url}/api/cli/datasets/own/download", headers=hers).json()
    address = answer["presigned_url"]
    assert httpx.get(address).content == ROWS
    parts = urlsplit(address)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    own = f"/api/objects/datasets/{own_id}"
    assert parts.path == own
    there = [
        f"/api/objects/datasets/{secret_id}", f"/api/objects/datasets/{own_id}/../{secret_id}",
        f"{own}%2f..%2f{secret_id}", f"/api/objects/datasets/{own_id.upper()}", f"{own}%20",
        f"/api/objects/runs/{run_id}/metrics.json", f"/api/objects/uploads/{own_id}/1",
        f"/api/objects/runs/{run_id}/%2e%2e/%2e%2e/datasets/{own_id}",
        "/api/objects/runs/x/../../../platform.db", "/api/objects/model-files/base/x/config.json",
    ]  # fmt: skip
    later = str(int(query["expires"]) + 1)
    asked = [
        *((path, query) for path in there),
        (own, {**query, "expires": later}), (own, {**query, "signature": query["signature"].upper()}),
        (own, {**query, "signature": query["signature"][:-1]}), (own, {**query, "signature": ""}), (own, {}),
        (own, {**query, "expires": "-1"}), (own, {**query, "expires": f"0{query['expires']}", "signature": "é"}),
    ]  # fmt: skip
    for path, values in asked:
        found = httpx.get(f"{platform.url}{path}", params=values)
        assert found.status_code in (400, 403, 404, 405, 422), (path, values, found.text)
        assert b"ground_truth" not in found.content
    assert httpx.put(address, content=b"x").status_code in (403, 405), "to read is not to write"
    assert httpx.get(sent_to).status_code in (403, 405), "and the other way round"
    assert httpx.put(sent_to, content=ROWS).status_code == 409, "and a part is sent while it is awaited"
    past = sign_url(platform.parts, f"datasets/{own_id}", method="GET", now=time.time() - 10**6)
    assert "expired" in httpx.get(past).text
    asked_by_her = httpx.get(f"{platform.url}/api/cli/datasets/{secret_id}/download", headers=hers)
    assert asked_by_her.status_code == 404


def test_names_of_files_of_a_run_lead_nowhere_else(platform: RunningPlatform) -> None:
    run_id = add_run(platform.parts, platform.workspace_id, "two", sampled_rows=1)
    paths = [
        "../two/metrics.json", "/etc/passwd", "artifacts/row_0_run_0/../../../../master.key", "job.log", "", "x\0y",
        "artifacts/row_0_run_0/a/../../../job.log", "artifacts/row_0_run_0/%2e%2e/job.log", "artifacts/row_0_run_0/..",
        "artifacts/row_0_run_0/\\..\\x", "artifacts/row_0_run_0/.", "trajectories/../metrics.json",
        "artifacts/row_0_run_0/x\0y", f"../{run_id}/metrics.json",
    ]  # fmt: skip
    with httpx.Client(base_url=platform.url, headers=platform.headers, timeout=60) as http:
        for path in paths:
            body = {"items": [{"path": path, "token": "t"}]}
            asked = http.post("/api/cli/eval-runs/two/samples/download-urls", json=body)
            assert asked.status_code in (200, 400, 404), (path, asked.text)
            addresses = [item["url"] for item in asked.json().get("items", [])]
            for address in (*addresses, sign_url(platform.parts, f"runs/{run_id}/{path}", method="GET")):
                opened = http.get(address)
                assert opened.status_code in (400, 403, 404), (path, opened.text)
