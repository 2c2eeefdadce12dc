"""The audit log: every change leaves its entry, in the same transaction, and no entry holds a secret."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
import sqlalchemy as sa

import osmosis.platform
from osmosis.platform import tables
from osmosis.platform.auth import tokens, users
from osmosis.platform.workspaces import audit

ROUTES = re.compile(r"(routes|pages)$")
SILENT = {
    "auth/routes.authorize": "a login is noted when somebody answers it",
    "workspace_pages.start_sync": "a sync changes nothing; its events say who pushed",
    "git/routes._request": "the same",
    "datasets/routes.abort": "an upload that was never there",
    "run_pages.annotate": "a label says itself who gave it, and when",
    "run_pages.keep": "the same",
    "workspaces/routes.register_server": "a rollout server is no person",
    "workspaces/routes.note": "the same",
    "workspaces/routes.note_heartbeat": "the same",
    "workspaces/routes._look_again": "the same",
    "workspaces/routes.remove_server": "the same",
}
"""Functions that write and leave no entry, and why; of pages without their folder."""
MACHINES = ("router.", "tickets_router.", "workers_router.")
"""Routers of jobs and workers in `scheduling/routes`: they are not people, and what they write is the run's."""
CHANGES = ("workers.drain(", "workers.remove(", "worker_service.drain(", "worker_service.remove(")
NOTING = ("audit.", "_note(", *CHANGES, "share_links.", "schedules.stop(", "decisions.stop(")
"""What leaves an entry: the log itself, or a service that writes into it."""


def test_whatever_changes_something_leaves_an_entry() -> None:
    """A route or page that writes is found in its source: one that is new notes what it does, or says here why not."""
    root = Path(osmosis.platform.__file__).parent
    files = [path for path in sorted(root.rglob("*.py")) if path.parent.name == "web" or ROUTES.search(path.stem)]
    assert len(files) > 15
    unnoted = set()
    for path in files:
        pages = path.parent.name == "web" or path.stem.endswith("pages")
        name = path.stem if pages else f"{path.parent.name}/{path.stem}"
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
                if name == "scheduling/routes" and any(text.startswith(MACHINES) for text in decorators):
                    continue
                text = ast.unparse(node)
                if "db.write()" in text and not any(word in text for word in NOTING):
                    unnoted.add(f"{name}.{node.name}")
    assert unnoted <= set(SILENT), sorted(unnoted - set(SILENT))


def entries(site) -> list[tables.AuditEntry]:
    return site.stored(sa.select(tables.AuditEntry).order_by(tables.AuditEntry.id))


def test_an_entry_says_who_what_when_from_where(ready) -> None:
    experiment = {"rollout": "multiply", "entrypoint": "main.py", "model_path": "offline/x", "dataset": "sums"}
    run = ready.json("POST", "eval-runs", json={"experiment_config": experiment, "evaluation_config": {"limit": 4}})
    ready.json("POST", f"eval-runs/{run['name']}/stop")
    ready.json("DELETE", f"eval-runs/{run['name']}", expect=204)
    ready.json("DELETE", "datasets/sums", expect=204)
    found = entries(ready)
    assert [(entry.action, entry.target) for entry in found[-4:]] == [
        ("run.submit", run["name"]),
        ("run.stop", run["name"]),
        ("run.delete", run["name"]),
        ("dataset.delete", "sums"),
    ]
    last = found[-1]
    assert (last.actor, last.token, last.address) == ("local", "device: test", "testclient")
    assert last.workspace_id is not None
    assert last.timestamp.tzinfo is not None
    assert [entry.action for entry in found[:2]] == ["login.device", "workspace.create"]


def test_no_entry_holds_a_secret(site) -> None:
    canary = "canary-5f1e0d"
    site.json("POST", "environment-secrets", json={"name": "KEY", "value": canary, "scope": "workspace"})
    issued = site.json("POST", "tokens", json={"name": "ci"})
    link = site.json("POST", "browser-login")["url"].partition("code=")[2]
    page = site.anonymous.get(f"/login/link?code={link}")
    csrf = page.text.partition('name="csrf" value="')[2].partition('"')[0]
    assert site.anonymous.post("/login/link", data={"code": link, "csrf": csrf}).status_code == 200
    cookie = site.anonymous.cookies["osmosis_session"]
    site.json("DELETE", f"tokens/{issued['token_id']}", expect=204)
    site.json("DELETE", "environment-secrets", expect=204, json={"name": "KEY", "scope": "workspace"})
    with site.platform.db.read() as session:
        rows = session.execute(sa.text("SELECT * FROM audit_log")).mappings().all()
    text = json.dumps([{key: str(value) for key, value in row.items()} for row in rows])
    assert {"secret.set", "token.create", "login.link", "login.browser", "token.revoke", "secret.delete"} <= {
        row["action"] for row in rows
    }
    for secret in (canary, issued["token"], link, cookie):
        assert secret not in text


def test_a_change_that_fails_leaves_no_entry_and_one_that_is_noted_happened(site) -> None:
    def someone(session) -> audit.Actor:
        owner = users.ensure_owner(session, "x")
        return audit.Actor(owner, tokens.issue(session, owner, "test").row, "::1")

    with site.platform.db.write() as session:
        who = someone(session)
    before = len(entries(site))

    def half() -> None:
        with site.platform.db.write() as session:
            audit.note(session, who, "user.add", "bob")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        half()
    assert len(entries(site)) == before
    with site.platform.db.write() as session:
        audit.note(session, who, "user.add", "bob", email="x" * 9999)
    assert len(entries(site)) == before + 1
    assert len(entries(site)[-1].details["email"]) == audit.MAX_TEXT


def test_entries_outlive_whom_they_name(site) -> None:
    with site.platform.db.write() as session:
        bob = users.create_user(session, "bob", email="bob@localhost", name="Bob")
        audit.note(session, audit.Actor(bob, tokens.issue(session, bob, "laptop").row, "10.0.0.7"), "run.stop", "x-1")
    with site.platform.db.write() as session:
        session.delete(session.get(tables.User, bob.id))
    last = entries(site)[-1]
    assert (last.actor, last.actor_id, last.token) == ("bob", None, "device: laptop")
