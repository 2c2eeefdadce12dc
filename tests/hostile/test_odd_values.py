"""Values that can be sent and not be kept: every route answers 4xx, and what is stored can still be listed."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from osmosis.engine.rubrics.rubric_files import load_rubric_configs, load_rubric_suite
from osmosis.errors import ValidationError
from osmosis.platform.http import JsonResponse
from support.platform_app import RunningPlatform, running_platform

DEEP = b"[" * 900 + b"]" * 900
ODD = [b'"\\ud800"', b"9223372036854775808", b"-99999999999999999999", b"1e308", b"1e999", b"NaN", b"-Infinity", DEEP]
POSTS = [
    ("/api/cli/device/authorize", b'{"deviceName": %b}'),
    ("/api/cli/device/token", b'{"device_code": %b}'),
    ("/api/cli/tokens", b'{"name": %b}'),
    ("/api/cli/workspaces", b'{"name": %b}'),
    ("/api/cli/datasets", b'{"file_name": "x", "file_size": %b, "extension": "jsonl"}'),
    ("/api/cli/datasets", b'{"file_name": %b, "file_size": 5, "extension": "jsonl"}'),
    ("/api/cli/secrets", b'{"name": "A", "scope": "workspace", "value": %b}'),
    ("/api/cli/eval-runs", b'{"rollout_name": %b}'),
    ("/api/cli/eval-runs", b'{"advanced_config": {"x": %b}}'),
    ("/api/cli/eval-runs/imports", b'{"manifest_digest": %b}'),
    ("/api/jobs/x/heartbeat", b'{"stage": "eval", "completed": %b}'),
]


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    with running_platform(tmp_path_factory.mktemp("odd") / "data") as running:
        yield running


@pytest.mark.parametrize(("path", "template"), POSTS)
def test_bodies(platform: RunningPlatform, path: str, template: bytes) -> None:
    with httpx.Client(base_url=platform.url, headers=platform.headers) as http:
        for value in ODD:
            headers = {"Content-Type": "application/json"}
            answer = http.post(path, content=template % value, headers=headers)
            assert 400 <= answer.status_code < 500 or value == b"1e308", (value[:30], answer.text)
            assert answer.status_code < 500, (value[:30], answer.text)
        for listing in ("/api/cli/datasets", "/api/cli/tokens", "/api/cli/workspaces", "/api/cli/eval-runs"):
            assert http.get(listing).status_code == 200, listing


@pytest.mark.parametrize(
    "path",
    [
        "/api/cli/datasets?offset=99999999999999999999",
        "/api/cli/datasets?limit=99999999999999999999",
        "/api/cli/eval-runs?offset=-1",
        "/api/objects/datasets/x?expires=1&signature=%C3%A9",
        "/api/objects/datasets/x?expires=99999999999999999999999&signature=0",
        "/api/cli/datasets/%00/logs",
        "/api/cli/datasets/x/logs?cursor=%C2%B2",
        "/api/cli/eval-runs/%ED%A0%80",
        "/runs/%ED%A0%80/rollouts/99999999999999999999/0",
    ],
)
def test_addresses(platform: RunningPlatform, path: str) -> None:
    with httpx.Client(base_url=platform.url, headers=platform.headers) as http:
        answer = http.get(path)
        assert 400 <= answer.status_code < 500, answer.text


def test_what_a_dataset_holds_can_be_listed(platform: RunningPlatform) -> None:
    lines = [{"user_prompt": f"{n}", "ground_truth": "x", "half \ud800": "\udfff"} for n in range(5)]
    content = json.dumps(lines).encode()
    with httpx.Client(base_url=platform.url, headers=platform.headers) as http:
        said = {"file_name": "halves", "file_size": len(content), "extension": "json"}
        made = http.post("/api/cli/datasets", json=said).json()
        assert http.put(made["upload"]["presigned_url"], content=content).status_code == 200
        done = http.post(f"/api/cli/datasets/{made['id']}/complete", json={})
        assert done.status_code in (200, 400), done.text
        for path in ("/api/cli/datasets", "/api/cli/datasets/halves", "/api/cli/datasets/halves/logs"):
            assert http.get(path).status_code == 200, path
        assert http.get(f"/datasets/{made['id']}").status_code == 200


@pytest.mark.parametrize(
    "url", ["https://[::1/x/y", "https://127.0.0.1:1/x/y.git", "--upload-pack=/bin/sh", "file:///nowhere/x"]
)
def test_a_repository_that_cannot_be_read(platform: RunningPlatform, url: str) -> None:
    with httpx.Client(base_url=platform.url, headers=platform.headers, timeout=60) as http:
        answer = http.post("/api/cli/workspaces/demo/connect", json={"repository_url": url})
        assert 400 <= answer.status_code < 500, answer.text


def test_answers_leave_whatever_was_stored() -> None:
    odd = {"half": "a\ud800b", "number": float("nan"), "inside": [float("inf"), {"big": 2**80}]}
    assert json.loads(JsonResponse(odd).body) == {"half": "a?b", "number": None, "inside": [None, {"big": 2**80}]}


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (LAUGHS, "more than 100000 values"),
        ("rubrics: " + "[" * 400 + "]" * 400, "nested more than 50 levels"),
        ("rubrics: " + "{a: " * 5000 + "1" + "}" * 5000, "nested more than 50 levels"),
        ("rubrics: &loop [*loop]", "nested more than 50 levels"),
    ],
    ids=["billion laughs", "deep", "deeper", "endless"],
)
def test_rubric_files(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "rubric.yaml"
    file.write_text(text)
    for load in (load_rubric_suite, load_rubric_configs):
        with pytest.raises(ValidationError, match=says):
            load(file)
