"""Logins, workspaces, datasets and secrets against a real platform process, by the commands people type."""

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from osmosis.cli.platform import process as local_platform
from osmosis.client import PlatformClient
from osmosis.client.credentials import CredentialStore, Login
from osmosis.serve.server_process import free_port
from support.command_line import CommandRun, run_command
from support.platform_process import until
from support.private_tls import PrivateAuthority
from support.terminal import run_in_terminal

Run = Callable[..., CommandRun]
ROW = '{"user_prompt": "a", "ground_truth": "1"}\n'


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("accounts")
    started = run_command("platform", "start", "--port", "0", cwd=folder)
    assert started.code == 0, started.err
    yield folder
    local_platform.stop(folder / ".home" / "data")


@pytest.fixture
def run(home: Path) -> Run:
    """A logged-in person with the workspace `w` active."""

    def go(*words: str, stdin: str = "", **environ: str) -> CommandRun:
        return run_command(*words, "--json", cwd=home, environ=environ, stdin=stdin)

    assert go("login").code == 0
    if not any(row["name"] == "w" for row in go("workspace", "list").json["items"]):
        assert go("workspace", "create", "w").code == 0
    assert go("workspace", "switch", "w").code == 0
    return go


def url_of(home: Path) -> str:
    running = local_platform.find(home / ".home" / "data")
    return running.url


def test_the_starter_is_logged_in_without_a_browser(run: Run, home: Path) -> None:
    who = run("whoami").json["data"]
    assert who["account"]["platform_url"] == url_of(home)
    assert who["verified"] is True
    with PlatformClient(url_of(home), _token(home)) as client:
        mine = client.workspaces.list()
    assert [row["name"] for row in who["workspaces"]] == [row.name for row in mine]
    assert run("login").json["resource"]["already"] is True


def test_a_token_of_the_environment_that_is_not_taken_is_what_has_to_go(run: Run) -> None:
    """Logging in would change nothing: the variable counts before any login."""
    for words in (("whoami",), ("eval", "list"), ("dataset", "list")):
        error = run(*words, OSMOSIS_TOKEN="of-another-platform").error
        assert error["code"] == "AUTH_REQUIRED"
        assert "unset OSMOSIS_TOKEN" in error["details"]["hint"]
    assert run("whoami").json["data"]["verified"] is True


def test_doctor_knows_that_the_platform_answers_whatever_the_credentials(run: Run, home: Path) -> None:
    store = home / ".home" / "config" / "credentials.json"
    store.chmod(0o644)
    try:
        found = run("doctor").json["data"]
    finally:
        store.chmod(0o600)
    assert (found["platform"]["reachable"], found["platform"]["logged_in"]) == (True, False)
    assert any("is readable by other users" in problem["what"] for problem in found["findings"])


def test_force_replaces_the_login_and_revokes_the_old_one(run: Run, home: Path) -> None:
    store = CredentialStore({"OSMOSIS_CONFIG_DIR": str(home / ".home" / "config")})
    old = store.stored(url_of(home))
    assert run("login", "--force").code == 0
    new = store.stored(url_of(home))
    assert new.token != old.token
    assert new.active_workspace == "w"
    refused = run("whoami", OSMOSIS_TOKEN=old.token, OSMOSIS_TOKEN_PLATFORM_URL=url_of(home))
    assert refused.error["code"] == "AUTH_REQUIRED"
    assert run("whoami").code == 0


def test_a_wrong_token_drops_nothing(run: Run) -> None:
    refused = run("login", "--token", "not-a-token")
    assert (refused.code, refused.error["code"]) == (1, "AUTH_REQUIRED")
    assert run("whoami").code == 0


def test_logout_revokes_only_what_this_tool_had_made(run: Run, home: Path) -> None:
    with PlatformClient(url_of(home), _token(home)) as client:
        given = client.call("POST", "tokens", json={"name": "ci"}, scoped=False)["token"]
    assert run("login", "--token", "-", stdin=f"{given}\n").json["resource"]["source"] == "token"
    assert run("logout", "--yes").json["resource"]["platforms"][0]["revoked"] is False
    assert run("whoami").error["code"] == "AUTH_REQUIRED"
    still = run("whoami", OSMOSIS_TOKEN=given, OSMOSIS_TOKEN_PLATFORM_URL=url_of(home))
    assert still.json["data"]["account"]["source"] == "environment"
    assert run("login").code == 0
    made = _token(home)
    assert run("logout", "--all", "--yes").json["resource"]["platforms"][0]["revoked"] is True
    gone = run("whoami", OSMOSIS_TOKEN=made, OSMOSIS_TOKEN_PLATFORM_URL=url_of(home))
    assert gone.error["code"] == "AUTH_REQUIRED"


def test_a_login_of_one_workspace_stands_beside_the_one_for_all(run: Run, home: Path) -> None:
    assert run("login", "--force").code == 0
    assert [row["name"] for row in _stored(home).workspaces] == ["w"]
    bound = run("token", "create", "only-w", "--scope", "api", "--workspace", "w").json["resource"]
    own = run("login", "--workspace", "w", "--token", "-", stdin=f"{bound['token']}\n")
    assert (own.code, own.json["resource"]["workspace"]) == (0, "w")
    assert _stored(home, "w").organization["role"] == "owner"
    who = run("whoami", "--workspace", "w").json["data"]
    assert (who["account"]["token_id"], who["account"]["login_workspace"]) == (bound["token_id"], "w")
    assert run("workspace", "create", "second").code == 0  # by the login for all: a token of one workspace may not
    assert run("whoami", "--workspace", "second").json["data"]["account"]["login_workspace"] is None
    no = run("login", "--workspace", "none", "--token", "-", stdin=f"{bound['token']}\n")
    assert (no.error["code"], no.error["details"]["hint"]) == ("NOT_FOUND", "its workspaces are w")
    out = run("logout", "--workspace", "w", "--yes").json["resource"]["platforms"]
    assert out == [{"platform_url": url_of(home), "workspace": "w", "revoked": False}]
    assert run("whoami", "--workspace", "w").json["data"]["account"]["login_workspace"] is None


def test_logout_asks_which_login(run: Run, home: Path) -> None:
    assert run("login", "--workspace", "w").code == 0
    config = {f"OSMOSIS_{name.upper()}_DIR": str(home / ".home" / name) for name in ("config", "data", "cache")}
    answers = [(b"Log out of which?", b"\x1b[B\r"), (f"Log out of workspace w at {url_of(home)}?".encode(), b"y")]
    shown = run_in_terminal(home, ["logout"], answers, {**config, "TERM": "xterm"})
    assert b"logged out of workspace w" in shown
    assert _stored(home, "w") is None
    assert _stored(home) is not None


def test_a_token_for_a_machine_is_made_listed_used_and_taken_back(run: Run, home: Path) -> None:
    said = run("token", "create", "box", "--scope", "api", "--workspace", "w", "--expires", "12h").json
    made = said["resource"]
    assert made["token"] in said["message"]
    assert (made["scopes"], made["workspace"]) == (["api"], "w")
    listed = {row["name"]: row for row in run("token", "list").json["items"]}
    assert listed["box"]["id"] == made["token_id"]
    assert made["token"] not in str(listed)
    there = {"OSMOSIS_TOKEN": made["token"], "OSMOSIS_TOKEN_PLATFORM_URL": url_of(home)}
    assert run("whoami", **there).json["data"]["workspaces"][0]["name"] == "w"
    assert run("workspace", "create", "more", **there).code == 1
    run("login", "--force")  # ends the login that made it, and not what was made
    assert run("whoami", **there).code == 0
    assert "12 parrots" in run("token", "create", "x", "--expires", "12 parrots").error["message"]
    assert run("token", "revoke", "bux", "--yes").error["details"]["hint"] == "did you mean box?"
    assert run("token", "revoke", "box", "--yes").json["resource"]["revoked"] == [made["token_id"]]
    assert run("whoami", **there).error["code"] == "AUTH_REQUIRED"


def test_a_second_person_gets_a_link_a_role_and_leaves(run: Run, home: Path) -> None:
    added = run("platform", "user", "add", "ada", "--email", "ada@example.com", "--name", "Ada").json["resource"]
    assert added["link"].startswith(f"{url_of(home)}/login/link?code=")
    assert "did you mean" in run("workspace", "invite", "ada", "--role", "viwer").error["details"]["hint"]
    assert run("workspace", "invite", "ada", "--role", "viewer").json["resource"]["role"] == "viewer"
    assert run("workspace", "role", "ada", "admin").code == 0
    invited = run("workspace", "invite", "grace@example.com")
    assert invited.json["next_steps_structured"][0]["command"].startswith("osmosis platform user add grace ")
    listed = {row.get("handle") or row["email"]: row["role"] for row in run("workspace", "members").json["items"]}
    assert (listed["ada"], listed["grace@example.com"]) == ("admin", "member")
    code = added["link"].partition("code=")[2]
    with PlatformClient(url_of(home), None) as client:
        hers = client.accounts.poll(code).token
    there = {"OSMOSIS_TOKEN": hers, "OSMOSIS_TOKEN_PLATFORM_URL": url_of(home)}
    refused = run("platform", "user", "list", **there).error
    assert (refused["code"], refused["details"]["platform_code"]) == ("PLATFORM_ERROR", "OPERATOR_NEEDED")
    assert run("workspace", "audit", "--workspace", "w", "--action", "member", **there).json["items"][0]["target"]
    assert run("platform", "user", "link", "ada", "--hours", "1").json["resource"]["url"] != added["link"]
    assert run("workspace", "remove", "grace@example.com", "--yes").code == 0
    assert run("platform", "user", "remove", "ada", "--yes").code == 0
    assert run("whoami", **there).error["code"] == "AUTH_REQUIRED"
    written = run("platform", "audit", "--output", "audit.jsonl").json["resource"]
    lines = (home / "audit.jsonl").read_text().splitlines()
    assert len(lines) == written["entries"] > 5
    assert hers not in "".join(lines)


def _stored(home: Path, workspace: str | None = None) -> Login | None:
    return CredentialStore({"OSMOSIS_CONFIG_DIR": str(home / ".home" / "config")}).stored(url_of(home), workspace)


def _token(home: Path) -> str:
    return _stored(home).token


def test_elsewhere_a_person_approves_the_code(run: Run, home: Path, tmp_path: Path) -> None:
    """The device flow, from a machine that did not start the platform: another data folder stands for it."""
    url, token = url_of(home), _token(home)
    done: list[CommandRun] = []
    words = ["login", "--no-browser", "--platform", url]
    worker = threading.Thread(target=lambda: done.append(run_command(*words, cwd=tmp_path)))
    with PlatformClient(url, None) as client:
        offer = client.accounts.authorize("other machine")
    assert offer.page.startswith(url)
    worker.start()
    _approve_waiting(home, token)
    worker.join(60)
    assert done, "the login did not end"
    assert done[0].code == 0, done[0].err
    assert run_command("whoami", "--platform", url, "--json", cwd=tmp_path).code == 0


def _approve_waiting(home: Path, token: str) -> None:
    """Approve the newest waiting code as its owner would on the page, straight in the platform's services."""
    import sqlalchemy as sa

    from osmosis.platform import tables
    from osmosis.platform.auth import login as login_flows
    from osmosis.platform.db import Database

    db = Database(f"sqlite:///{home / '.home' / 'data' / 'platform.db'}")
    deadline = time.monotonic() + 30
    try:
        while time.monotonic() < deadline:
            with db.write() as session:
                query = sa.select(tables.DeviceCode).where(
                    tables.DeviceCode.status == "pending", tables.DeviceCode.device_name != "other machine"
                )
                waiting = session.scalars(query).first()
                if waiting is not None:
                    owner = session.scalars(sa.select(tables.User)).first()
                    assert owner is not None
                    login_flows.decide(session, waiting.user_code, owner, approve=True)
                    return
            time.sleep(0.1)
    finally:
        db.close()
    raise AssertionError("no login was waiting")


def test_a_dataset_goes_up_once_and_comes_back_the_same(run: Run, home: Path) -> None:
    file = home / "rows.jsonl"
    file.write_text(ROW * 6)
    first = run("dataset", "upload", "rows.jsonl")
    assert first.code == 0, first.err
    assert (first.json["resource"]["row_count"], first.json["resource"]["uploaded"]) == (6, True)
    assert run("dataset", "upload", "rows.jsonl").json["resource"]["uploaded"] is False
    file.write_text(ROW * 7)
    assert run("dataset", "upload", "rows.jsonl").error["code"] == "CONFLICT"
    assert run("dataset", "upload", "rows.jsonl", "--overwrite").error["code"] == "INTERACTIVE_REQUIRED"
    replaced = run("dataset", "upload", "rows.jsonl", "--overwrite", "--yes")
    assert replaced.json["resource"]["row_count"] == 7
    assert [row["file_name"] for row in run("dataset", "list").json["items"]] == ["rows"]
    assert len(run("dataset", "preview", "rows", "--rows", "2").json["items"]) == 2
    assert run("dataset", "download", "rows", "-o", "back.jsonl").code == 0
    assert (home / "back.jsonl").read_bytes() == file.read_bytes()
    assert run("dataset", "download", "rows", "-o", "back.jsonl").error["code"] == "CONFLICT"
    assert run("dataset", "delete", "rows", "--yes").code == 0
    assert run("dataset", "info", "rows").error["code"] == "NOT_FOUND"


def test_a_secret_goes_in_and_never_comes_out(run: Run, home: Path) -> None:
    value = "s3cret-value-of-the-test"
    assert run("secret", "set", "MY_KEY", "--env", "SOURCE", SOURCE=value).code == 0
    assert run("secret", "set", "MY_KEY", "--from-file", "-", "--scope", "workspace", stdin=value).code == 0
    (home / "more.env").write_text(f"export ONE='{value}'\n# comment\nTWO={value}\n")
    assert run("secret", "import", "more.env", "--yes").json["resource"]["names"] == ["ONE", "TWO"]
    listed = run("secret", "list")
    mine = next(row for row in listed.json["items"] if row["name"] == "MY_KEY" and row["scope"] == "personal")
    assert mine["shadows"] is True
    assert value not in listed.out + run("secret", "list", "--scope", "personal").out
    assert "did you mean ONE" in run("secret", "delete", "ONR", "--yes").error["details"]["hint"]
    for name in ("MY_KEY", "ONE", "TWO"):
        assert run("secret", "delete", name, "--yes").code == 0
    assert [row["scope"] for row in run("secret", "list").json["items"]] == ["workspace"]


def test_the_active_workspace_and_the_flag(run: Run) -> None:
    assert run("workspace", "current").json["data"]["chosen_by"] == "osmosis workspace switch"
    assert "did you mean w?" in run("workspace", "switch", "ww").error["details"]["hint"]
    for words in (["switch", "support"], ["rename", "support", "agents"], ["delete", "support", "--yes"]):
        assert run("workspace", *words).error["details"]["hint"] == "osmosis workspace list"
    assert run("eval", "list").json["workspace"] == {"name": "w"}
    assert run("eval", "list", "--workspace", "nobody").code == 1
    assert run("eval", "info", "nothing-1").error["code"] == "NOT_FOUND"
    assert run("train", "list").json["items"] == []
    assert run("model", "list").code == 0


def test_a_link_logs_a_browser_in(run: Run, home: Path) -> None:
    import httpx

    link = run("platform", "open", "--no-browser").json["resource"]
    assert link["opened"] is False
    assert link["url"].startswith(url_of(home))
    assert httpx.get(link["url"]).status_code == 200


def test_a_login_keeps_by_which_certificates_its_platform_is_known(run: Run, home: Path, tmp_path: Path) -> None:
    authority = PrivateAuthority.made(tmp_path / "ca", "127.0.0.1")
    listen = f"127.0.0.1:{free_port()}"
    there = ("--platform", f"https://{listen}")
    front = subprocess.Popen(authority.front(listen, url_of(home).removeprefix("http://")))
    try:
        strange = ("login", *there, "--token", _token(home))
        until(lambda: "CERTIFICATE_VERIFY_FAILED" in run(*strange).error["message"], "the front answers")
        assert "--ca-file FILE" in run(*strange).error["details"]["hint"]
        kept = run(*strange, "--ca-file", str(authority.ca_file))
        assert kept.code == 0, kept.err
        assert run("whoami", *there).json["data"]["verified"] is True
        assert run("login", *there).json["resource"]["already"] is True
        assert run("dataset", "list", "--workspace", "w", *there).code == 0
        assert run("logout", *there, "--yes").code == 0
        by_variable = {"OSMOSIS_TOKEN": _token(home), "OSMOSIS_TOKEN_PLATFORM_URL": there[1]}
        found = run("whoami", *there, **by_variable, OSMOSIS_CA_FILE=str(authority.ca_file))
        assert found.json["data"]["verified"] is True
    finally:
        front.kill()
        front.wait()
