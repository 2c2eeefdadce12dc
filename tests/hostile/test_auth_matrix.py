"""Every route of the platform's own OpenAPI, asked by everybody who must not use it: made from the document, so a new
route is asked, too."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from osmosis.platform import tables
from osmosis.platform.auth import tokens, users
from osmosis.platform.workspaces import service as workspaces
from osmosis.records.api.accounts import ROLES, NewToken
from support.platform_app import RunningPlatform, running_platform

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


APART = ("/api/jobs/", "/api/objects/", "/hooks/", "/api/workers/", "/api/cli/workers")
"""Routes with credentials of their own: leases, signed addresses, signed messages, tokens of workers; and the list of
one's own workers."""
OPERATOR = {
    ("get", "/api/cli/users"), ("post", "/api/cli/users"), ("delete", "/api/cli/users/{handle}"),
    ("post", "/api/cli/users/{handle}/link"), ("delete", "/api/cli/users/{handle}/identities"),
    ("get", "/api/cli/platform/audit"),
    ("put", "/api/cli/workspaces/{name}/quota"),
}  # fmt: skip
"""Routes of the person who runs the platform."""
OWN = {
    ("post", "/api/cli/rollout-server/{server_id}/heartbeat"), ("delete", "/api/cli/rollout-server/{server_id}"),
}  # fmt: skip
"""Routes about a thing of the person's own, whatever their role: who may not make one has none."""
LEAST: dict[tuple[str, str], str] = {
    ("post", "/api/cli/eval-runs/{name}/samples/download-urls"): "viewer",
    ("post", "/api/cli/benchmark-runs/{name}/outputs/download-urls"): "viewer",
    ("post", "/api/cli/members"): "admin",
    ("put", "/api/cli/members/{person}"): "admin",
    ("delete", "/api/cli/members/{person}"): "admin",  # and whoever leaves
    ("get", "/api/cli/audit"): "admin",
    ("get", "/api/cli/webhook"): "admin",
    ("get", "/api/cli/environment-secrets"): "member",
    ("post", "/api/cli/environment-secrets"): "admin",
    ("delete", "/api/cli/environment-secrets"): "admin",
    ("post", "/api/cli/workspaces/{name}/connect"): "admin",
    ("patch", "/api/cli/workspaces/{name}"): "owner",
    ("delete", "/api/cli/workspaces/{name}"): "owner",
}
"""The least role that a route takes, where it is not the usual: viewers read, members do the rest."""
BODIES = {
    "/api/cli/members": {"person": "nobody@localhost", "role": "viewer"},
    "/api/cli/members/{person}": {"role": "viewer"},
    "/api/cli/environment-secrets": {"name": "SHARED", "value": "x", "scope": "workspace"},
    "/api/cli/workspaces/{name}": {"name": "demo"},
    "/api/cli/workspaces/{name}/connect": {"repository_url": "file:///nowhere/there"},
}
"""Where the body decides what is asked for: the most that can be."""


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
            stranger = tokens.issue(session, other, "test").text
        document = httpx.get(f"{running.url}/openapi.json", timeout=60).json()
        routes = [
            (method, path) for path, item in document["paths"].items() for method in item if method != "parameters"
        ]
        assert len(routes) > 60
        with httpx.Client(base_url=running.url, timeout=60) as http:
            yield Site(running, stranger, routes, http)


def ask(site: Site, method: str, path: str, body: bytes | None = None, **headers: str) -> httpx.Response:
    filled = path.replace("{", "").replace("}", "")
    body = body or (None if method in ("get", "delete") else b"{}")
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
            allowed = (400, 401, 404, 409) if path.startswith("/api/jobs/") else (401,)
            if path.startswith("/hooks/"):
                allowed = (401,)  # signed with the secret of the repository
            if path.startswith("/api/objects/"):
                allowed = (400, 403)  # the signature in the address is the credential
            assert answer.status_code in allowed, (method, path, headers, answer.status_code, answer.text)


def test_a_member_of_another_workspace_learns_nothing(site: Site) -> None:
    for method, path in site.routes:
        if (method, path) in OPEN | PERSONAL | OPERATOR or path.startswith(APART):
            continue
        answer = ask(site, method, path, **bearer(site.stranger), **{"X-Osmosis-Workspace": "demo"})
        assert answer.status_code in (400, 403, 404), (method, path, answer.status_code, answer.text)


def test_a_revoked_token_is_none_at_the_next_request(site: Site) -> None:
    with site.running.parts.db.write() as session:
        owner = users.ensure_owner(session, "local")
        issued = tokens.issue(session, owner, "to be revoked")
    headers = {**bearer(issued.text), "X-Osmosis-Workspace": "demo"}
    gets = [path for method, path in site.routes if method == "get" and path.startswith("/api/cli/")]
    assert ask(site, "get", "/api/cli/verify", **headers).status_code == 200
    with site.running.parts.db.write() as session:
        tokens.revoke(session, issued.row, issued.row.id)
    for path in gets:
        assert ask(site, "get", path, **headers).status_code == 401, path


def test_no_route_fails_over_an_empty_request_of_a_member(site: Site) -> None:
    for method, path in site.routes:
        if path == "/api/cli/workspaces/{name}/connect":
            continue
        answer = ask(site, method, path, **site.running.headers)
        assert answer.status_code < 500 or answer.status_code == 501, (method, path, answer.text)


def least_of(method: str, path: str) -> str:
    return LEAST.get((method, path), "viewer" if method == "get" else "member")


@pytest.mark.parametrize("role", ROLES)
def test_every_route_asks_what_the_role_may(site: Site, role: str) -> None:
    """A route that is new is held to the usual until `LEAST` says otherwise."""
    with site.running.parts.db.write() as session:
        person = users.create_user(session, f"a-{role}", email=f"{role}@localhost", name=role)
        session.add(tables.Member(workspace_id=site.running.workspace_id, user_id=person.id, role=role))
        token = tokens.issue(session, person, "test").text
    headers = {**bearer(token), "X-Osmosis-Workspace": "demo"}
    of_workspaces = [*site.routes, *LEAST]
    for method, path in dict.fromkeys(of_workspaces):
        if (method, path) in OPEN | PERSONAL | OPERATOR | OWN or path.startswith(APART):
            continue
        if role == "owner" and (method, path) == ("delete", "/api/cli/workspaces/{name}"):
            continue  # it would; the other routes need the workspace
        body = json.dumps(BODIES[path]).encode() if path in BODIES and method != "get" else None
        filled = path.replace("{name}", "demo") if path.startswith("/api/cli/workspaces/") else path
        answer = ask(site, method, filled, body, **headers)
        refused = answer.status_code == 403 and answer.json().get("code") == "ROLE_MISSING"
        allowed = ROLES.index(role) >= ROLES.index(least_of(method, path))
        assert refused is not allowed, (role, method, path, answer.status_code, answer.text)


def test_only_who_runs_the_platform_and_with_a_login_gets_at_all_of_it(site: Site) -> None:
    with site.running.parts.db.write() as session:
        owner = users.ensure_owner(session, "local")
        login = tokens.issue(session, owner, "login").row
        by_name = tokens.create_named(session, login, NewToken(name="ci")).text
        guest = users.create_user(session, "boss", email="boss@localhost", name="Boss")
        session.add(tables.Member(workspace_id=site.running.workspace_id, user_id=guest.id, role="owner"))
        text = tokens.issue(session, guest, "login").text
    assert set(site.routes) >= OPERATOR
    for method, path in OPERATOR:
        for token in (text, by_name):
            answer = ask(site, method, path, **bearer(token), **{"X-Osmosis-Workspace": "demo"})
            assert (answer.status_code, answer.json()["code"]) == (403, "OPERATOR_NEEDED"), (method, path)
        assert ask(site, method, path, **site.running.headers).status_code in (200, 400, 404), (method, path)


def test_the_routes_that_need_more_than_the_usual_are_there(site: Site) -> None:
    assert set(LEAST) <= set(site.routes)


@pytest.mark.parametrize(("role", "fetch", "push"), [("viewer", 200, 403), ("member", 200, 200), ("none", 404, 404)])
def test_the_git_host_asks_what_the_role_may(site: Site, role: str, fetch: int, push: int) -> None:
    with site.running.parts.db.write() as session:
        person = users.create_user(session, f"git-{role}", email=f"git-{role}@localhost", name=role)
        if role != "none":
            session.add(tables.Member(workspace_id=site.running.workspace_id, user_id=person.id, role=role))
        token = tokens.issue(session, person, "test").text
    for service, status in (("git-upload-pack", fetch), ("git-receive-pack", push)):
        found = site.http.get(f"/git/local/demo.git/info/refs?service={service}", headers=bearer(token))
        assert found.status_code == status, found.text
        if status == 403:
            assert site.http.post(f"/git/local/demo.git/{service}", headers=bearer(token)).status_code == 403
