"""What a stolen lease, or a worker's token, opens: asked of every route that the platform says it has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from .conftest import ON_SQLITE
from .test_workers import Box, submit, worker_token

pytestmark = ON_SQLITE
OWN = "/api/jobs/{run_id}"
"""Where a lease speaks for its run."""
WORK = "/api/workers/"
REFUSED = {401, 403, 404, 405, 409}
OPEN = {"/api/cli/device/authorize"}
"""What everybody may ask, and gets another answer each time."""
TAKER = {"taker": "t" * 30}
BODIES: dict[str, dict[str, Any]] = {
    "/api/jobs/claim": {"run_id": "1", **TAKER},
    f"{OWN}/secrets": TAKER,
    f"{OWN}/heartbeat": {"stage": "rollouts"},
    f"{OWN}/rollouts": {"rollouts": []},
    f"{OWN}/logs": {"lines": []},
    f"{OWN}/metrics": {"points": []},
    f"{OWN}/checkpoints": {"checkpoints": []},
    f"{OWN}/rewind": {"step": 0},
    f"{OWN}/optimization": {
        **{"rollout": "r", "seed": {}, "rows": {}, "candidates": [], "stopped": "", "winner": "seed"},
        **{"max_rollouts": 1, "rollouts": 0, "reflections": 0},
    },
    f"{OWN}/model": {"files": []},
    f"{OWN}/finish": {"status": "finished"},
}
"""What is looked at before the lease is: a route that is missing here is malformed, and fails."""


def routes(site: Any) -> Iterator[tuple[str, str]]:
    """Method and path, as the platform's own description has them."""
    for path, operations in site.anonymous.app.openapi()["paths"].items():
        for method in operations:
            yield method.upper(), path


def filled(path: str, **known: str) -> str:
    query = "?size=1" if path.endswith("/{path}") else ""
    return re.sub(r"\{(\w+)\}", lambda found: known.get(found[1], "1"), path) + query


def outcome(answer: httpx.Response) -> tuple[int, bytes]:
    """What can be told apart, without what is new in each answer."""
    text = re.sub(rb'"request_id":"\w+"', b"", answer.content)
    return answer.status_code, re.sub(rb"[0-9a-f-]{16,}|\d{9,}", b"", text)


class Thief:
    """Somebody elsewhere, who has a token and tries it everywhere."""

    def __init__(self, box: Box, token: str) -> None:
        self.http, self.bearer = box.http, {"Authorization": f"Bearer {token}"}

    def tries(self, method: str, path: str, **known: str) -> httpx.Response:
        return self._ask(method, path, known, {**self.bearer, "X-Osmosis-Workspace": "demo"})

    def opens(self, method: str, path: str, **known: str) -> bool:
        """Whether the token makes a difference."""
        answer = self.tries(method, path, **known)
        if answer.status_code in REFUSED or path in OPEN:
            return False
        return outcome(answer) != outcome(self._ask(method, path, known, {}))

    def _ask(self, method: str, path: str, known: dict[str, str], headers: dict[str, str]) -> httpx.Response:
        body = BODIES.get(path, {})
        return self.http.request(method, filled(path, **known), headers=headers, json=body, follow_redirects=False)


@pytest.fixture
def box(ready: Any) -> Box:
    return Box(ready, worker_token(ready))


def test_a_stolen_lease_opens_one_run_and_nothing_else(box: Box) -> None:
    own, other = submit(box.site), submit(box.site)
    thief = Thief(box, box.claim()["lease"])
    assert thief.tries("GET", f"{OWN}/spec", run_id=own["id"]).status_code == 200, "it is a good lease"
    known = {"workspace": "demo", "name": str(other["name"]), "run_id": str(other["id"])}
    tried = list(routes(box.site))
    assert len([path for _, path in tried if path.startswith(OWN)]) > 10
    assert len(tried) > 100
    opened = [(method, path) for method, path in tried if thief.opens(method, path, **known)]
    assert not opened
    assert box.site.json("GET", f"eval-runs/{other['name']}")["eval_run"]["status"] == "pending"


def test_a_workers_token_opens_nothing_but_work(box: Box) -> None:
    run = submit(box.site)
    thief = Thief(box, box.token)
    known = {"workspace": "demo", "name": str(run["name"]), "run_id": str(run["id"])}
    tried = [route for route in routes(box.site) if not route[1].startswith(WORK)]
    opened = [(method, path) for method, path in tried if thief.opens(method, path, **known)]
    assert not opened
    assert box.claim()["run_id"] == run["id"], "it is a good token"
