"""Logging in: device flow, bootstrap, tokens and the headers that name a workspace."""

from __future__ import annotations

import stat
from datetime import timedelta

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from osmosis.platform import tables
from osmosis.platform.app import create_app
from osmosis.platform.auth import login, tokens, users
from osmosis.records.base import utc_now


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_device_flow_from_the_first_call_to_a_revoked_token(site) -> None:
    started = site.anonymous.post("/api/cli/device/authorize", json={"deviceName": "laptop"}).json()
    assert started["verification_uri"].endswith("/device")
    assert started["user_code"] in started["verification_uri_complete"]
    poll = {"device_code": started["device_code"]}
    waiting = site.anonymous.post("/api/cli/device/token", json=poll)
    assert (waiting.status_code, waiting.json()["error"]) == (400, "authorization_pending")
    assert site.anonymous.post("/api/cli/device/token", json=poll).json()["error"] == "slow_down"
    with site.platform.db.write() as session:
        login.decide(session, started["user_code"].lower(), users.ensure_owner(session, "x"), approve=True)

    issued = site.anonymous.post("/api/cli/device/token", json=poll).json()
    assert {"id", "email", "name"} <= set(issued["user"])
    assert site.anonymous.post("/api/cli/device/token", json=poll).json()["error"] == "expired_token"
    verified = site.anonymous.get("/api/cli/verify", headers=_bearer(issued["token"])).json()
    assert verified["token_id"] == issued["token_id"]
    assert "workspace" not in verified

    gone = site.anonymous.delete(f"/api/cli/tokens/{issued['token_id']}", headers=_bearer(issued["token"]))
    assert gone.status_code == 204
    refused = site.anonymous.get("/api/cli/verify", headers=_bearer(issued["token"]))
    assert (refused.status_code, refused.json()["code"]) == (401, "TOKEN_REVOKED")


def test_a_denied_and_an_expired_login(site) -> None:
    started = site.anonymous.post("/api/cli/device/authorize", json={}).json()
    with site.platform.db.write() as session:
        login.decide(session, started["user_code"], users.ensure_owner(session, "x"), approve=False)
    poll = {"device_code": started["device_code"]}
    assert site.anonymous.post("/api/cli/device/token", json=poll).json()["error"] == "access_denied"

    late = site.anonymous.post("/api/cli/device/authorize", json={}).json()
    with site.platform.db.write() as session:
        row = login.find(session, late["user_code"])
        row.expires_at = utc_now() - timedelta(seconds=1)
    poll = {"device_code": late["device_code"]}
    assert site.anonymous.post("/api/cli/device/token", json=poll).json()["error"] == "expired_token"


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ({}, "AUTH_HEADER_MISSING"),
        ({"Authorization": "Basic abc"}, "TOKEN_MISSING"),
        ({"Authorization": "Bearer osm_unknown"}, "TOKEN_INVALID"),
    ],
)
def test_every_refusal_has_its_code(shared, header, code) -> None:
    answer = shared.anonymous.get("/api/cli/verify", headers=header)
    assert answer.status_code == 401
    assert answer.json()["code"] == code
    assert answer.json()["error"] == answer.json()["message"]


def test_an_expired_token_is_refused(site) -> None:
    with site.platform.db.write() as session:
        session.execute(sa.update(tables.Token).values(expires_at=utc_now() - timedelta(days=1)))
    assert site.json("GET", "verify", expect=401)["code"] == "TOKEN_EXPIRED"


def test_no_token_is_in_the_database(site) -> None:
    token = site.http.headers["authorization"].partition(" ")[2]
    hashes = site.stored(sa.select(tables.Token.hash))
    assert hashes
    assert all(token not in value for value in hashes)


def test_bootstrap_needs_the_file_which_only_its_owner_reads(shared) -> None:
    answer = shared.anonymous.post("/api/cli/bootstrap", json={"deviceName": "x"}, headers=_bearer("guess"))
    assert answer.status_code == 401
    folder = shared.platform.settings.data_dir
    for name in ("bootstrap.token", "master.key"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600


def test_the_workspace_is_named_by_one_header(shared) -> None:
    demo = shared.json("GET", "workspaces")["workspaces"][0]
    identity = demo["connected_repo"]["repo_full_name"]
    token = {"Authorization": shared.http.headers["authorization"]}

    def ask(**headers: str):
        return shared.anonymous.get("/api/cli/datasets", headers={**token, **headers})

    assert ask(**{"X-Osmosis-Git": identity}).status_code == 200
    verified = shared.anonymous.get("/api/cli/verify", headers={**token, "X-Osmosis-Git": identity}).json()
    assert verified["workspace"] == {"id": demo["id"], "name": "demo", "role": "owner"}
    both = ask(**{"X-Osmosis-Git": identity, "X-Osmosis-Workspace": "demo"})
    assert (both.status_code, both.json()["code"]) == (400, "WORKSPACE_SCOPE_HEADER_CONFLICT")
    assert ask().json()["code"] == "GIT_SCOPE_REQUIRED"
    assert ask(**{"X-Osmosis-Git": "nonsense"}).json()["code"] == "GIT_SCOPE_INVALID"
    unknown = ask(**{"X-Osmosis-Git": "some/where"})
    assert (unknown.status_code, unknown.json()["code"]) == (403, "GIT_REPOSITORY_NOT_CONNECTED")
    assert ask(**{"X-Osmosis-Workspace": "other"}).json()["code"] == "WORKSPACE_SCOPE_HEADER_ACCESS_DENIED"


def test_a_stranger_sees_no_workspace_of_others(site) -> None:
    with site.platform.db.write() as session:
        stranger = users.create_user(session, "eve", email="eve@localhost", name="Eve")
        token = tokens.issue(session, stranger, "test").text
    assert site.anonymous.get("/api/cli/workspaces", headers=_bearer(token)).json() == {"workspaces": []}
    identity = site.json("GET", "workspaces")["workspaces"][0]["connected_repo"]["repo_full_name"]
    for header in ({"X-Osmosis-Workspace": "demo"}, {"X-Osmosis-Git": identity}):
        answer = site.anonymous.get("/api/cli/datasets", headers={**_bearer(token), **header})
        assert answer.status_code == 403


@pytest.mark.parametrize(
    ("version", "status"), [("0.3.8", "current"), ("1.0.0", "current"), ("0.2.10", "deprecated"), ("odd", "current")]
)
def test_clients_learn_how_their_version_stands(shared, version, status) -> None:
    answer = shared.http.get("/api/cli/verify", headers={"X-Osmosis-CLI-Version": version})
    assert answer.status_code == 200
    assert answer.headers["X-Osmosis-Version-Status"] == status


def test_a_client_that_is_too_old_is_told_to_upgrade(shared) -> None:
    answer = shared.http.get("/api/cli/verify", headers={"X-Osmosis-CLI-Version": "0.1.9"})
    assert answer.status_code == 426
    assert {"status", "message"} <= set(answer.json())


def test_whatever_one_process_changes_holds_at_the_next_request_in_another(site) -> None:
    """A token that is revoked, one that expires, a member who is removed, a role that changes."""
    other = TestClient(create_app(site.platform.settings), headers=dict(site.http.headers))
    with other:
        assert other.get("/api/cli/verify").json()["workspace"]["role"] == "owner"
        with site.platform.db.write() as session:
            session.execute(sa.update(tables.Member).values(role="member"))
        assert other.get("/api/cli/verify").json()["workspace"]["role"] == "member"
        with site.platform.db.write() as session:
            session.execute(sa.delete(tables.Member))
        assert other.get("/api/cli/verify").json()["code"] == "WORKSPACE_SCOPE_HEADER_ACCESS_DENIED"
        with site.platform.db.write() as session:
            session.execute(sa.update(tables.Token).values(expires_at=utc_now()))
        assert other.get("/api/cli/verify").json()["code"] == "TOKEN_EXPIRED"
        with site.platform.db.write() as session:
            session.execute(sa.update(tables.Token).values(revoked_at=utc_now()))
        assert other.get("/api/cli/verify").json()["code"] == "TOKEN_REVOKED"
