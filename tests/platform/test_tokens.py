"""The one table of tokens: scopes, a workspace, an end, and what is revoked with what."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from osmosis.platform import Platform, tables
from osmosis.platform.auth import login as login_flows, tokens, users
from osmosis.platform.settings import PlatformSettings
from osmosis.platform.workspaces import service as workspaces
from osmosis.records.base import utc_now
from support.platform_process import PlatformProcess


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def made(site, expect: int = 200, **wish: object) -> dict[str, str]:
    """A token made by the owner's login."""
    return site.json("POST", "tokens", expect=expect, json={"name": "ci", **wish})


def ask(site, token: str, method: str = "GET", path: str = "verify", **kwargs):
    headers = {**bearer(token), **kwargs.pop("headers", {})}
    return site.anonymous.request(method, f"/api/cli/{path}", headers=headers, **kwargs)


def test_a_token_has_the_scopes_that_were_chosen(site) -> None:
    issued = made(site, scopes=["inference"], expires_in=3600)
    assert (issued["name"], issued["scopes"]) == ("ci", ["inference"])
    refused = ask(site, issued["token"])
    assert (refused.status_code, refused.json()["code"]) == (403, "TOKEN_SCOPE_MISSING")
    assert "--scope api" in refused.json()["hint"]
    listed = {row["id"]: row for row in site.json("GET", "tokens")["tokens"]}
    assert listed[issued["token_id"]]["scopes"] == ["inference"]
    assert sum(row["current"] for row in listed.values()) == 1
    assert listed[issued["token_id"]]["parent_id"] == next(row["id"] for row in listed.values() if row["current"])


def test_git_needs_the_scope_for_it(site) -> None:
    url = "/git/local/demo.git/info/refs?service=git-upload-pack"
    for scopes, status in ((["api"], 403), (["git"], 200)):
        token = made(site, scopes=scopes)["token"]
        assert site.anonymous.get(url, headers=bearer(token)).status_code == status
    for scopes, status in ((["git"], 403), (["api"], 200)):
        token = made(site, scopes=scopes)["token"]
        assert site.anonymous.get("/", headers=bearer(token)).status_code == status


def test_a_token_of_one_workspace_is_good_for_that_one_only(site) -> None:
    site.json("POST", "workspaces", json={"name": "other"})
    issued = made(site, workspace="demo")
    assert issued["workspace"] == "demo"
    token = issued["token"]
    assert ask(site, token).json()["workspace"]["name"] == "demo"  # it needs no header
    assert ask(site, token, path="datasets").status_code == 200
    other = {"X-Osmosis-Workspace": "other"}
    for answer in (
        ask(site, token, path="datasets", headers=other),
        ask(site, token, path="datasets", headers={"X-Osmosis-Git": "local/other"}),
        ask(site, token, "POST", "workspaces", json={"name": "third"}),
        ask(site, token, "POST", "browser-login"),
        ask(site, token, "POST", "workspaces/other/connect", json={"repository_url": "https://a.example/b/c"}),
        ask(site, token, "POST", "tokens", json={"name": "x", "workspace": "other"}),
        site.anonymous.get("/", headers=bearer(token)),
        site.anonymous.get("/git/local/other.git/info/refs?service=git-upload-pack", headers=bearer(token)),
    ):
        assert answer.status_code == 403, answer.text
    assert [row["name"] for row in ask(site, token, path="workspaces").json()["workspaces"]] == ["demo"]
    child = ask(site, token, "POST", "tokens", json={"name": "x"}).json()
    assert ask(site, child["token"]).json()["workspace"]["name"] == "demo"
    assert ask(site, child["token"], path="datasets", headers=other).status_code == 403


def test_what_a_token_makes_may_no_more_and_lives_no_longer_than_itself(site) -> None:
    parent = made(site, scopes=["api"], expires_in=3600)
    more = ask(site, parent["token"], "POST", "tokens", json={"name": "x", "scopes": ["api", "git"]})
    assert (more.status_code, more.json()["code"]) == (403, "TOKEN_SCOPE_MISSING")
    wish = {"name": "x", "scopes": ["api"], "expires_in": 86400}
    child = ask(site, parent["token"], "POST", "tokens", json=wish).json()
    assert child["expires_at"] == parent["expires_at"]
    link = ask(site, parent["token"], "POST", "browser-login").json()["url"]
    with site.platform.db.write() as session:
        opened = login_flows.poll(session, link.partition("code=")[2], browser="a browser")
        assert (opened.row.scopes, opened.row.expires_at) == (
            "api",
            session.get(tables.Token, child["token_id"]).expires_at,
        )
    more = ask(site, opened.text, "POST", "tokens", json={"name": "x", "scopes": ["git"]})
    assert more.status_code == 403  # neither by way of a browser
    mine = ask(site, parent["token"], path="tokens").json()["tokens"]
    assert {row["id"] for row in mine} == {parent["token_id"], child["token_id"], opened.row.id}
    login = next(row["id"] for row in site.json("GET", "tokens")["tokens"] if row["current"])
    assert ask(site, child["token"], "DELETE", f"tokens/{login}").status_code == 404


def test_children_die_with_their_parent_at_any_depth(site) -> None:
    login = site.http.headers["authorization"].partition(" ")[2]
    first = made(site)
    second = ask(site, first["token"], "POST", "tokens", json={"name": "second"}).json()
    third = ask(site, second["token"], "POST", "tokens", json={"name": "third"}).json()
    apart = made(site, name="apart")
    site.json("DELETE", f"tokens/{first['token_id']}", expect=204)
    for gone in (first, second, third):
        assert ask(site, gone["token"]).json()["code"] == "TOKEN_REVOKED"
    assert ask(site, apart["token"]).status_code == ask(site, login).status_code == 200
    row = next(row["id"] for row in site.json("GET", "tokens")["tokens"] if row["current"])
    site.json("DELETE", f"tokens/{row}", expect=204)
    assert ask(site, apart["token"]).json()["code"] == "TOKEN_REVOKED"


def test_a_logout_takes_no_token_with_it_that_was_made_by_name(site) -> None:
    ci = made(site)
    with site.platform.db.write() as session:
        login = session.get(tables.Token, session.get(tables.Token, ci["token_id"]).parent_id)
        browser = tokens.issue(session, login.user, "a browser", kind="session", maker=login)
        in_browser = tokens.create_named(session, browser.row, tokens.NewToken(name="made on the page"))
    site.json("DELETE", f"tokens/{login.id}?logout=true", expect=204)
    assert site.http.get("/api/cli/verify").json()["code"] == "TOKEN_REVOKED"
    assert ask(site, browser.text).json()["code"] == "TOKEN_REVOKED"
    assert ask(site, ci["token"]).status_code == ask(site, in_browser.text).status_code == 200


def test_a_login_whose_approver_was_revoked_is_none(site) -> None:
    with site.platform.db.write() as session:
        offer = login_flows.start(session, "laptop")
        session.flush()
        owner = users.ensure_owner(session, "x")
        thief = tokens.issue(session, owner, "stolen").row
        login_flows.decide(session, offer.user_code, owner, approve=True, maker=thief)
        tokens.revoke(session, thief, thief.id)
    poll = site.anonymous.post("/api/cli/device/token", json={"device_code": offer.device_code})
    assert poll.json()["error"] == "access_denied"


@pytest.mark.parametrize("wish", [{"scopes": []}, {"scopes": ["admin"]}, {"expires_in": 1}, {"name": ""}])
def test_a_wish_that_makes_no_sense_is_refused(shared, wish) -> None:
    made(shared, expect=400, **wish)


def test_who_may_make_the_token_of_a_worker(site) -> None:
    with site.platform.db.write() as session:
        guest = users.create_user(session, "guest", email="guest@localhost", name="Guest")
        text = tokens.issue(session, guest, "login").text
        workspace = session.scalars(sa.select(tables.Workspace)).one()
        session.add(tables.Member(workspace_id=workspace.id, user_id=guest.id, role="member"))
    wish = {"name": "box", "scopes": ["worker"]}
    for body in (wish, {**wish, "workspace": "demo"}):
        assert ask(site, text, "POST", "tokens", json=body).status_code == 403
    with site.platform.db.write() as session:
        workspaces.create(session, session.get(tables.User, guest.id), "own")
    assert ask(site, text, "POST", "tokens", json={**wish, "workspace": "own"}).status_code == 200
    assert made(site, **wish)["scopes"] == ["worker"]


def test_a_page_lists_makes_and_revokes_tokens(site) -> None:
    login = site.http.headers["authorization"]
    page = site.anonymous.get("/tokens", headers={"Authorization": login})
    assert page.status_code == 200
    form = {"name": "<b>ci</b>", "scope": ["git", "inference"], "only": "demo", "days": "7"}
    page = site.anonymous.post("/tokens", data=form, headers={"Authorization": login})
    assert "&lt;b&gt;ci&lt;/b&gt;" in page.text
    text = html.unescape(re.search(r"<pre[^>]*>(osm_[^<]+)</pre>", page.text)[1])
    with site.platform.db.read() as session:
        row = tokens.authenticate(session, text)
    assert (row.scopes, row.workspace_id is not None) == ("git inference", True)
    assert text not in site.anonymous.get("/tokens", headers={"Authorization": login}).text
    refused = site.anonymous.post("/tokens", data={"name": "x", "only": "nowhere"}, headers={"Authorization": login})
    assert refused.status_code == 404
    assert "no workspace named" in refused.text
    gone = site.anonymous.post(f"/tokens/{row.id}/revoke", headers={"Authorization": login}, data={"csrf": ""})
    assert gone.status_code == 200
    assert ask(site, text).json()["code"] == "TOKEN_REVOKED"
    log = site.json("GET", "audit?action=token")["entries"]
    assert [entry["action"] for entry in log] == ["token.revoke", "token.create"], "in the workspace's own log, too"


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Platform, PlatformProcess]]:
    """Two processes over one data folder: this one, which changes, and one that is asked."""
    at = PlatformProcess(tmp_path / "data", no_worker="")
    at.start()
    try:
        at.login()
        yield Platform.open(PlatformSettings(data_dir=tmp_path / "data")), at
    finally:
        at.terminate()


def test_what_one_process_takes_away_another_refuses_at_the_next_request(two) -> None:
    here, there = two

    def refused(code: str) -> None:
        assert there.http.get("/api/cli/verify").json()["code"] == code

    def change(table: type[tables.Base], **values: object) -> None:
        with here.db.write() as session:
            session.execute(sa.update(table).values(**values))

    for _ in range(20):  # whatever is kept between requests is kept now
        assert there.http.get("/api/cli/verify").json()["workspace"]["role"] == "owner"
    change(tables.Member, role="member")
    assert there.http.get("/api/cli/verify").json()["workspace"]["role"] == "member"
    change(tables.Token, scopes="git")
    refused("TOKEN_SCOPE_MISSING")
    change(tables.Token, scopes="api git")
    with here.db.write() as session:
        session.execute(sa.delete(tables.Member))
    refused("WORKSPACE_SCOPE_HEADER_ACCESS_DENIED")
    change(tables.Token, expires_at=utc_now())
    refused("TOKEN_EXPIRED")
    with here.db.write() as session:
        row = session.scalars(sa.select(tables.Token).limit(1)).one()
        tokens.revoke(session, row, row.id)
    refused("TOKEN_REVOKED")
