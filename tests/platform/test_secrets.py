"""Secrets: who sets which, what shadows what, and that no value ever comes back or lies readable in the database."""

from __future__ import annotations

import base64
import os

import pytest
import sqlalchemy as sa

from osmosis.errors import InternalError, ValidationError
from osmosis.platform import tables
from osmosis.platform.auth import tokens, users
from osmosis.platform.vault import Vault
from osmosis.platform.workspaces import secrets
from support.platform_data import EXPERIMENT

VALUE = "value-that-must-not-leak"


def put(site, name: str, scope: str = "user", expect: int = 200, value: str = VALUE):
    body = {"name": name, "value": value, "scope": scope}
    return site.json("POST", "environment-secrets", expect=expect, json=body)


def test_set_list_and_delete(site) -> None:
    row = put(site, "API_KEY")
    assert {"id", "name", "scope", "created_at", "updated_at", "creator_name", "updater_name"} <= set(row)
    put(site, "API_KEY", "workspace")
    put(site, "API_KEY", value="other")
    listed = site.json("GET", "environment-secrets")
    assert [(s["name"], s["scope"]) for s in listed["environment_secrets"]] == [
        ("API_KEY", "user"),
        ("API_KEY", "workspace"),
    ]
    assert listed["platform_url"]
    assert site.json("GET", "environment-secrets?scope=user")["total_count"] == 1
    site.json("DELETE", "environment-secrets", expect=204, json={"name": "API_KEY", "scope": "user"})
    site.json("DELETE", "environment-secrets", expect=404, json={"name": "API_KEY", "scope": "user"})
    assert site.json("GET", "environment-secrets")["total_count"] == 1


def test_no_answer_and_no_file_holds_the_value(site) -> None:
    answers = [put(site, "API_KEY"), site.json("GET", "environment-secrets")]
    assert VALUE not in str(answers)
    row = site.only(sa.select(tables.Secret))
    assert VALUE.encode() not in row.ciphertext
    site.platform.db.close()
    for path in site.platform.settings.data_dir.rglob("*"):
        assert not path.is_file() or VALUE.encode() not in path.read_bytes(), path


@pytest.mark.parametrize("name", ["lower", "1X", "A-B", "", "A" * 256])
def test_a_name_that_is_no_variable_is_refused(shared, name) -> None:
    put(shared, name, expect=400)


@pytest.mark.parametrize("value", ["", "a\0b", "x" * 70_000])
def test_a_value_that_is_no_variable_is_refused_without_repeating_it(shared, value) -> None:
    refused = put(shared, "API_KEY", expect=400, value=value)
    assert not value or value not in refused["message"]


def test_a_member_sets_personal_secrets_only_and_sees_no_personal_ones_of_others(site) -> None:
    put(site, "MINE")
    with site.platform.db.write() as session:
        member = users.create_user(session, "bob", email="bob@localhost", name="Bob")
        workspace = session.scalars(sa.select(tables.Workspace)).one()
        session.add(tables.Member(workspace_id=workspace.id, user_id=member.id, role="member"))
        token = tokens.issue(session, member, "test").text
    headers = {"Authorization": f"Bearer {token}", "X-Osmosis-Workspace": "demo"}
    body = {"name": "SHARED", "value": "v", "scope": "workspace"}
    assert site.anonymous.post("/api/cli/environment-secrets", json=body, headers=headers).status_code == 403
    assert site.anonymous.get("/api/cli/environment-secrets", headers=headers).json()["total_count"] == 0


def test_personal_shadows_workspace_and_a_run_value_shadows_both(site) -> None:
    for name, scope in (("A", "workspace"), ("B", "user"), ("C", "user"), ("C", "workspace"), ("D", "workspace")):
        put(site, name, scope)
    with site.platform.db.read() as session:
        workspace = session.scalars(sa.select(tables.Workspace)).one()
        user = session.scalars(sa.select(tables.User)).one()
        found = secrets.resolve(session, workspace.id, user.id, ["A", "B", "C", "D", "E"], given=["D"])
    assert found == ({"A": "workspace", "B": "user", "C": "user_override", "D": "run"}, ["E"])


def test_a_row_moved_elsewhere_cannot_be_opened(tmp_path) -> None:
    vault = Vault.open(tmp_path)
    sealed = vault.seal("v", "workspace-1|KEY|1")
    assert vault.unseal(sealed, "workspace-1|KEY|1") == "v"
    with pytest.raises(InternalError, match="altered or moved"):
        vault.unseal(sealed, "workspace-2|KEY|1")


def test_the_master_key_is_given_or_made_once(tmp_path) -> None:
    sealed = Vault.open(tmp_path).seal("v", "x")
    assert Vault.open(tmp_path).unseal(sealed, "x") == "v"
    given = base64.b64encode(os.urandom(32)).decode()
    other = Vault.open(tmp_path / "elsewhere", given)
    assert not (tmp_path / "elsewhere" / "master.key").exists()
    with pytest.raises(InternalError, match="encrypted with master key"):
        other.unseal(sealed, "x")
    for bad in ("no base64!", base64.b64encode(b"short").decode()):
        with pytest.raises(ValidationError):
            Vault.open(tmp_path, bad)


def test_a_secret_tells_which_run_was_last_given_it(ready) -> None:
    put(ready, "API_KEY")
    put(ready, "API_KEY", "workspace")
    put(ready, "OTHER")
    body = {"experiment_config": EXPERIMENT, "secrets": {"required": ["API_KEY"]}}
    submitted = ready.json("POST", "eval-runs", json=body)
    before = ready.json("GET", "environment-secrets")["environment_secrets"]
    assert [row["last_used_by"] for row in before] == [None, None, None], "submitted is not given yet"
    with ready.platform.db.write() as session:
        secrets.use_for(session, ready.platform.vault, session.get_one(tables.Run, submitted["id"]))
    after = ready.json("GET", "environment-secrets")["environment_secrets"]
    used = [(row["name"], row["scope"]) for row in after if row["last_used_by"] == submitted["name"]]
    assert used == [("API_KEY", "user")], "the one that shadows is the one that was given"
    assert after[0]["last_used_at"]
