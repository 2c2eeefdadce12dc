"""Every route of the platform's own OpenAPI, asked by everybody who must not use it: made from the document, so a new
route is asked, too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from osmosis.platform.services import users, workspaces
from osmosis.testing.platform_app import RunningPlatform, running_platform

OPEN = {
    ("get", "/health"), ("get", "/ready"), ("get", "/metrics"),
    ("post", "/api/cli/device/authorize"), ("post", "/api/cli/device/token"), ("post", "/api/cli/bootstrap"),
}  # fmt: skip
"""Routes that need no login. The bootstrap has a credential of its own; whoever adds a route here says why."""
PERSONAL = {
    ("get", "/api/cli/verify"), ("get", "/api/cli/tokens"), ("post", "/api/cli/tokens"),
    ("delete", "/api/cli/tokens/{token_id}"),
    ("post", "/api/cli/browser-login"), ("get", "/api/cli/workspaces"), ("post", "/api/cli/workspaces"),
    ("get", "/api/cli/quickstart"), ("post", "/api/cli/quickstart"),
}  # fmt: skip
"""Routes that are of a person, not of a workspace."""


@dataclass(frozen=True)
class Site:
    running: RunningPlatform
    stranger: str
    """The token of a person who belongs to another workspace."""
    routes: list[tuple[str, str]]
    http: httpx.Client


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_platform(tmp_path_factory.mktemp("matrix") / "data") as running:
        with running.parts.db.write() as session:
            other = users.create_user(session, "mallory", email="m@localhost", name="Mallory")
            workspaces.create(session, other, "elsewhere")
            stranger = users.issue_token(session, other, "test").text
        document = httpx.get(f"{running.url}/openapi.json", timeout=60).json()
        routes = [
            (method, path) for path, item in document["paths"].items() for method in item if method != "parameters"
        ]
        assert len(routes) > 60
        with httpx.Client(base_url=running.url, timeout=60) as http:
            yield Site(running, stranger, routes, http)


def ask(site: Site, method: str, path: str, **headers: str) -> httpx.Response:
    filled = path.replace("{", "").replace("}", "")
    body = None if method in ("get", "delete") else b"{}"
    sent = {"Content-Type": "application/json", **headers}
    return site.http.request(method, filled, headers=sent, content=body)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_nobody_without_a_credential_gets_an_answer(site: Site) -> None:
    for method, path in site.routes:
        if (method, path) in OPEN:
            continue
        for headers in ({}, bearer("osm_wrong"), {"Authorization": "Basic eDp5"}):
            answer = ask(site, method, path, **headers)
            # a job shows its lease, which is compared when the form of its message is known
            allowed = (400, 401, 409) if path.startswith("/api/jobs/") else (401,)
            if path.startswith("/api/objects/"):
                allowed = (400, 403)  # the signature in the address is the credential
            assert answer.status_code in allowed, (method, path, headers, answer.status_code, answer.text)


def test_a_member_of_another_workspace_learns_nothing(site: Site) -> None:
    for method, path in site.routes:
        if (method, path) in OPEN | PERSONAL or path.startswith(("/api/jobs/", "/api/objects/")):
            continue
        answer = ask(site, method, path, **bearer(site.stranger), **{"X-Osmosis-Workspace": "demo"})
        assert answer.status_code in (400, 403, 404), (method, path, answer.status_code, answer.text)


def test_a_revoked_token_is_none_at_the_next_request(site: Site) -> None:
    with site.running.parts.db.write() as session:
        owner = users.ensure_owner(session, "local")
        issued = users.issue_token(session, owner, "to be revoked")
    headers = {**bearer(issued.text), "X-Osmosis-Workspace": "demo"}
    gets = [path for method, path in site.routes if method == "get" and path.startswith("/api/cli/")]
    assert ask(site, "get", "/api/cli/verify", **headers).status_code == 200
    with site.running.parts.db.write() as session:
        users.revoke_token(session, owner, issued.row.id)
    for path in gets:
        assert ask(site, "get", path, **headers).status_code == 401, path


def test_no_route_fails_over_an_empty_request_of_a_member(site: Site) -> None:
    for method, path in site.routes:
        if path == "/api/cli/workspaces/{name}/connect":
            continue
        answer = ask(site, method, path, **site.running.headers)
        assert answer.status_code < 500 or answer.status_code == 501, (method, path, answer.text)
