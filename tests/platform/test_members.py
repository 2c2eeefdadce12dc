"""People: added by whoever runs the platform, let in with a link, invited into workspaces, given roles, removed."""

from __future__ import annotations

import threading

import pytest
import sqlalchemy as sa

from osmosis.errors import Conflict, NotFound
from osmosis.platform import tables
from osmosis.platform.auth import login as login_flows, tokens, users
from osmosis.platform.workspaces import service as workspaces


def person(site, handle: str, role: str = "") -> dict[str, str]:
    """The headers of somebody new, with this role in `demo`."""
    with site.platform.db.write() as session:
        user = users.create_user(session, handle, email=f"{handle}@example.com", name=handle.title())
        text = tokens.issue(session, user, "laptop").text
        if role:
            workspace = session.scalars(sa.select(tables.Workspace).where(tables.Workspace.name == "demo")).one()
            session.add(tables.Member(workspace_id=workspace.id, user_id=user.id, role=role))
    return {"Authorization": f"Bearer {text}", "X-Osmosis-Workspace": "demo"}


def ask(site, who: dict[str, str], method: str, path: str, **body: object):
    return site.anonymous.request(method, f"/api/cli/{path}", headers=who, json=body or None)


def roles(site) -> dict[str, str]:
    return {row.get("handle") or row["email"]: row["role"] for row in site.json("GET", "members")["members"]}


def test_somebody_joins_by_handle_or_address_and_gets_another_role(site) -> None:
    ada, bob = person(site, "ada"), person(site, "bob")
    assert ask(site, ada, "GET", "datasets").status_code == 403
    site.json("POST", "members", json={"person": "ada", "role": "viewer"})
    site.json("POST", "members", json={"person": "BOB@example.com"})
    assert roles(site) == {"local": "owner", "bob": "member", "ada": "viewer"}
    assert ask(site, ada, "GET", "datasets").status_code == 200
    assert ask(site, ada, "POST", "sync").status_code == 403
    again = site.json("POST", "members", expect=409, json={"person": "ada"})
    assert again["hint"] == "osmosis workspace members ada --role member"
    site.json("PUT", "members/ada", json={"role": "member"})
    assert ask(site, ada, "POST", "sync").status_code == 202
    site.json("DELETE", "members/bob", expect=204)
    assert ask(site, bob, "GET", "datasets").json()["code"] == "WORKSPACE_SCOPE_HEADER_ACCESS_DENIED"
    assert site.json("POST", "members", expect=404, json={"person": "nobody"})["hint"].startswith("invite them by")


def test_an_invitation_waits_for_its_address(site) -> None:
    site.json("POST", "members", json={"person": "Grace@Example.com", "role": "viewer"})
    site.json("POST", "members", json={"person": "grace@example.com", "role": "admin"})  # another role, once
    site.json("POST", "members", json={"person": "never@example.com"})
    assert roles(site) == {"local": "owner", "grace@example.com": "admin", "never@example.com": "member"}
    site.json("DELETE", "members/never@example.com", expect=204)
    made = site.json("POST", "users", json={"handle": "grace", "email": "grace@EXAMPLE.com"})
    assert made["workspaces"] == {"demo": "admin"}
    assert roles(site) == {"local": "owner", "grace": "admin"}


def test_admins_do_not_touch_owners(site) -> None:
    admin = person(site, "admin-ada", "admin")
    person(site, "bob", "member")
    for method, path, body in (
        ("PUT", "members/local", {"role": "member"}),
        ("DELETE", "members/local", {}),
        ("PUT", "members/bob", {"role": "owner"}),
        ("PUT", "members/admin-ada", {"role": "owner"}),
        ("POST", "members", {"person": "new@example.com", "role": "owner"}),
    ):
        answer = ask(site, admin, method, path, **body)
        assert (answer.status_code, answer.json()["code"]) == (403, "ROLE_MISSING"), (method, path)
    assert ask(site, admin, "PUT", "members/bob", role="admin").status_code == 200


def test_everybody_may_leave_but_the_last_owner(site) -> None:
    viewer = person(site, "ada", "viewer")
    assert ask(site, viewer, "DELETE", "members/local").status_code == 403
    assert ask(site, viewer, "DELETE", "members/ada").status_code == 204
    for method, body in (("DELETE", {}), ("PUT", {"role": "admin"})):
        answer = ask(site, dict(site.http.headers), method, "members/local", **body)
        assert (answer.status_code, answer.json()["code"]) == (409, "LAST_OWNER")
    person(site, "bob", "owner")
    site.json("DELETE", "members/local", expect=204)


def test_two_owners_who_remove_each_other_at_once_leave_one(site) -> None:
    person(site, "bob", "owner")
    outcomes: list[str] = []
    barrier = threading.Barrier(2)

    def remove(asker: str, target: str) -> None:
        barrier.wait(10)
        try:
            with site.platform.db.write() as session:
                workspace, role = workspaces.by_name(session, users.require(session, asker), "demo")
                workspaces.remove_member(session, workspace, users.require(session, asker), role, target)
            outcomes.append("removed")
        except (Conflict, NotFound) as error:  # or is no member any more when it is their turn
            outcomes.append(error.details.get("code", error.code))

    pairs = [("local", "bob"), ("bob", "local")]
    threads = [threading.Thread(target=remove, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(outcomes) in (["LAST_OWNER", "removed"], ["NOT_FOUND", "removed"])
    assert site.only(sa.select(sa.func.count()).select_from(tables.Member)) == 1


def test_whoever_leaves_takes_their_secrets_and_servers_along(site) -> None:
    ada = person(site, "ada", "member")
    assert ask(site, ada, "POST", "environment-secrets", name="MINE", value="x", scope="user").status_code == 200
    site.json("DELETE", "members/ada", expect=204)
    site.json("POST", "members", json={"person": "ada"})
    assert ask(site, ada, "GET", "environment-secrets").json()["environment_secrets"] == []


def test_a_person_is_added_linked_and_removed(site) -> None:
    made = site.json("POST", "users", json={"handle": "ada", "name": "<i>Ada</i>"})
    assert (made["email"], made["operator"], made["workspaces"]) == ("ada@localhost", False, {})
    assert site.json("POST", "users", expect=400, json={"handle": "ada"})["code"] == "VALIDATION"
    link = site.json("POST", "users/ada/link", json={"hours": 2})
    assert link["expires_in"] == 7200
    path = "/" + link["url"].split("/", 3)[3]
    page = site.anonymous.get(path)
    assert "&lt;i&gt;Ada&lt;/i&gt;" in page.text
    assert site.anonymous.get(path).status_code == 200  # looking at it uses nothing up
    code = path.partition("code=")[2]
    csrf = page.text.partition('name="csrf" value="')[2].partition('"')[0]
    entered = site.anonymous.post("/login/link", data={"code": code, "csrf": csrf}, follow_redirects=False)
    assert entered.status_code == 303
    assert "osmosis_session" in entered.cookies
    assert "Ada" in site.anonymous.get("/").text
    assert site.anonymous.get(path).status_code == 401
    with site.platform.db.read() as session:
        row = session.scalars(sa.select(tables.Token).where(tables.Token.kind == "session")).one()
    assert row.parent_id is None  # what the operator does with their token is nothing to Ada
    site.json("DELETE", "users/ada", expect=204)
    gone = site.anonymous.get("/", follow_redirects=False)
    assert (gone.status_code, gone.headers["location"]) == (303, "/login")
    site.anonymous.cookies.clear()
    assert [row["handle"] for row in site.json("GET", "users")["users"]] == ["local"]


def test_a_link_ends_with_the_login_that_made_it(site) -> None:
    with site.platform.db.write() as session:
        owner = users.ensure_owner(session, "x")
        stolen = tokens.issue(session, owner, "stolen").row
        ada = users.create_user(session, "ada", email="", name="Ada")
        login = login_flows.link_for(session, ada, stolen)
        tokens.revoke(session, stolen, stolen.id)
    with site.platform.db.write() as session:
        assert login_flows.poll(session, login.device_code, browser="x") == "access_denied"


def test_what_a_person_owned_alone_needs_an_heir(site) -> None:
    ada = person(site, "ada")
    assert ask(site, ada, "POST", "workspaces", name="hers").status_code == 200
    person(site, "bob")
    refused = site.json("DELETE", "users/ada", expect=409)
    assert (refused["code"], "hers" in refused["message"]) == ("LAST_OWNER", True)
    assert "--give-to" in refused["hint"]
    site.json("DELETE", "users/ada?heir=bob", expect=204)
    bob = next(row for row in site.json("GET", "users")["users"] if row["handle"] == "bob")
    assert bob["workspaces"] == {"hers": "owner"}
    assert site.json("DELETE", "users/local", expect=400)["message"] == "you cannot remove yourself"


def test_the_audit_log_is_read_by_page_and_by_noun(site) -> None:
    person(site, "ada")
    site.json("POST", "members", json={"person": "ada"})
    site.json("DELETE", "members/ada", expect=204)
    page = site.json("GET", "audit?action=member&limit=1")
    assert [row["action"] for row in page["entries"]] == ["member.remove"]
    assert (page["total_count"], page["next_offset"]) == (2, 1)
    assert page["entries"][0]["target"] == "ada"
    everything = site.json("GET", "platform/audit?actor=local")
    assert "login.device" in [row["action"] for row in everything["entries"]]
    assert site.json("GET", "audit?actor=ada")["entries"] == []


def test_pages_of_people(site) -> None:
    mine = {"Authorization": site.http.headers["authorization"]}
    added = site.anonymous.post("/users", headers=mine, data={"handle": "ada", "name": "Ada"})
    assert "/login/link?code=" in added.text
    assert site.anonymous.post("/users", headers=mine, data={"handle": "ada"}).status_code == 400
    invited = site.anonymous.post("/demo/members", headers=mine, data={"person": "ada", "role": "viewer"})
    assert (invited.status_code, "<code>ada</code>" in invited.text) == (200, True)
    assert "is viewer of demo already" in (
        site.anonymous.post("/demo/members", headers=mine, data={"person": "ada"}).text.replace("a viewer", "viewer")
    )
    site.anonymous.post("/demo/members/ada/role", headers=mine, data={"role": "admin"})
    assert roles(site)["ada"] == "admin"
    last = site.anonymous.post("/demo/members/local/remove", headers=mine, data={"csrf": ""})
    assert (last.status_code, "last owner" in last.text) == (409, True)
    with site.platform.db.write() as session:
        text = tokens.issue(session, users.require(session, "ada"), "x").text
    hers = {"Authorization": f"Bearer {text}"}
    assert site.anonymous.get("/demo/audit", headers=hers).status_code == 200
    for path in ("/users", "/audit", "/audit.jsonl"):
        assert site.anonymous.get(path, headers=hers).status_code == 403
        assert site.anonymous.get(path, headers=mine).status_code == 200
    site.json("PUT", "members/ada", json={"role": "viewer"})
    page = site.anonymous.get("/demo/members", headers=hers)
    assert (page.status_code, "Invite" in page.text) == (200, False)
    assert site.anonymous.get("/demo/audit.jsonl", headers=hers).status_code == 403
    exported = site.anonymous.get("/demo/audit.jsonl", headers=mine).text.splitlines()
    assert len(exported) == site.json("GET", "audit")["total_count"]
    site.anonymous.post("/demo/members/ada/remove", headers=hers, data={"csrf": ""})
    assert "ada" not in roles(site)


@pytest.mark.parametrize("body", [{"handle": "A B"}, {"handle": ""}, {"handle": "-x"}, {}])
def test_a_handle_that_is_none_is_refused(shared, body) -> None:
    shared.json("POST", "users", expect=400, json=body)
