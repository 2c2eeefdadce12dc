"""Signing in through an OpenID Connect provider: a real platform and a real provider, both over HTTP."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import sqlalchemy as sa

from osmosis.base.variables import SettingsError
from osmosis.platform import tables
from osmosis.platform.auth import users
from osmosis.platform.settings import OpenIdSettings
from osmosis.platform.workspaces import service
from support.openid_issuer import IssuerAccount, OpenIdIssuer, openid_issuer
from support.platform_app import RunningPlatform, running_platform


@pytest.fixture
def issuer() -> Iterator[OpenIdIssuer]:
    with openid_issuer() as running:
        yield running


@pytest.fixture
def platform(tmp_path: Path, issuer: OpenIdIssuer) -> Iterator[RunningPlatform]:
    with running_platform(tmp_path / "data", environ=issuer.environ(NAME="Example")) as running:
        yield running


@pytest.fixture
def open_platform(tmp_path: Path, issuer: OpenIdIssuer) -> Iterator[RunningPlatform]:
    """One that gives an account to whoever has an address of example.com."""
    with running_platform(tmp_path / "open", environ=issuer.environ(DOMAINS="Example.com")) as running:
        yield running


def browser(platform: RunningPlatform) -> httpx.Client:
    return httpx.Client(base_url=platform.url, trust_env=False, timeout=30)


def sign_in(at: httpx.Client, next_page: str = "/") -> httpx.Response:
    """Through the provider and back: the answer of the platform to who comes back."""
    there = at.get("/login/openid", params={"next": next_page})
    assert there.status_code == 303, there.text
    back = httpx.get(there.headers["location"], trust_env=False)
    assert back.status_code == 302, back.text
    return at.get(back.headers["location"])


def refused(answer: httpx.Response, status: int, words: str) -> None:
    assert answer.status_code == status, answer.text
    assert words in answer.text
    assert "Log in with" in answer.text  # the page offers to try again
    assert "osmosis_session" not in answer.cookies


def invite(platform: RunningPlatform, email: str) -> None:
    with platform.parts.db.write() as session:
        owner = users.require(session, "local")
        workspace = session.get_one(tables.Workspace, platform.workspace_id)
        service.invite_member(session, workspace, owner, "owner", email, "member")


def handles(platform: RunningPlatform) -> list[str]:
    with platform.parts.db.read() as session:
        return list(session.scalars(sa.select(tables.User.handle).order_by(tables.User.created_at)))


def actions(platform: RunningPlatform) -> list[tuple[str, str]]:
    with platform.parts.db.read() as session:
        query = sa.select(tables.AuditEntry).order_by(tables.AuditEntry.id)
        return [(entry.action, entry.actor) for entry in session.scalars(query)]


def test_whoever_is_invited_by_address_gets_in_and_is_known_from_then_on(platform, issuer) -> None:
    invite(platform, "ada@example.com")
    with browser(platform) as at:
        assert "Log in with Example" in at.get("/login").text
        entered = sign_in(at, "/demo/datasets")
        assert (entered.status_code, entered.headers["location"]) == (303, "/demo/datasets")
        assert "Ada Lovelace" in at.get("/demo/datasets").text
    assert actions(platform)[-2:] == [("user.add", "ada"), ("login.browser", "ada")]
    issuer.account = IssuerAccount(email="countess@elsewhere.example", email_verified=False)  # the same subject
    with browser(platform) as at:
        assert sign_in(at).status_code == 303
    assert handles(platform) == ["local", "ada"]
    assert [asked["code_challenge_method"] for asked in issuer.asked_for] == ["S256", "S256"]
    assert len({asked[name] for asked in issuer.asked_for for name in ("state", "nonce", "code_challenge")}) == 6


def test_a_verified_address_links_to_the_person_who_has_it(platform, issuer) -> None:
    with platform.parts.db.write() as session:
        users.create_user(session, "countess", email="ADA@example.com", name="Ada")
    with browser(platform) as at:
        assert sign_in(at).status_code == 303
    assert handles(platform) == ["local", "countess"]
    assert actions(platform)[-2:] == [("user.identity", "countess"), ("login.browser", "countess")]
    issuer.account = IssuerAccount(subject="somebody else who was given the address")
    with browser(platform) as at:
        refused(sign_in(at), 409, "osmosis platform user link countess --undo")
    answer = httpx.delete(f"{platform.url}/api/cli/users/countess/identities", headers=platform.headers)
    assert answer.status_code == 204
    with browser(platform) as at:
        assert sign_in(at).status_code == 303


def test_an_address_that_is_not_verified_opens_nothing(open_platform, issuer) -> None:
    with open_platform.parts.db.write() as session:
        users.create_user(session, "ada", email="ada@example.com", name="Ada")
    invite(open_platform, "grace@example.com")
    for verified in (False, "false", None):
        for email in ("ada@example.com", "grace@example.com"):
            issuer.account = IssuerAccount(email=email, email_verified=verified)
            with browser(open_platform) as at:
                refused(sign_in(at), 403, "has not verified")
    assert handles(open_platform) == ["local", "ada"]


def test_nobody_else_gets_in_unless_the_settings_say_so(platform, open_platform, issuer) -> None:
    with browser(platform) as at:
        refused(sign_in(at), 403, "osmosis workspace members ada@example.com")
    assert handles(platform) == ["local"]
    with browser(open_platform) as at:
        assert sign_in(at).status_code == 303
    issuer.account = IssuerAccount(subject="00u2", preferred_username="ADA@corp", email="a.b@example.com")
    with browser(open_platform) as at:
        assert sign_in(at).status_code == 303
    for number, email in enumerate(("ada@sub.example.com", "ada@notexample.com", "example.com", "a@b@example.com")):
        issuer.account = IssuerAccount(subject=f"outside{number}", email=email)
        with browser(open_platform) as at:
            assert sign_in(at).status_code == 403, email
    assert handles(open_platform) == ["local", "ada", "ada-2"]


def test_domains_and_groups_are_both_needed_where_both_are_set(tmp_path, issuer) -> None:
    more = issuer.environ(DOMAINS="example.com", GROUPS="ml, robots", SCOPES="email groups")
    with running_platform(tmp_path / "data", environ=more) as platform:
        issuer.short_tokens = True  # which tell neither address nor groups
        for groups, status in ((["sales"], 403), ([], 403), (["sales", "robots"], 303)):
            issuer.account = IssuerAccount(groups=groups)
            with browser(platform) as at:
                assert sign_in(at).status_code == status, groups
        issuer.account = IssuerAccount(subject="00u2", email="eve@evil.example", groups=["robots"])
        with browser(platform) as at:
            assert sign_in(at).status_code == 403
        assert issuer.asked_for[0]["scope"] == "openid email groups"


def test_what_does_not_hold_signs_nobody_in(open_platform, issuer) -> None:
    for fault in (
        "nonce",
        "expired",
        "audience",
        "issuer",
        "no_issuer",
        "signature",
        "unsigned",
        "shared_key",
        "no_token",
    ):
        issuer.fault = fault
        with browser(open_platform) as at:
            refused(sign_in(at), 401, "does not hold")
    assert handles(open_platform) == ["local"]
    issuer.fault = ""
    with browser(open_platform) as at:
        assert sign_in(at).status_code == 303


def test_a_provider_that_says_no_or_nothing_is_a_page(open_platform, issuer) -> None:
    issuer.fault = "denied"
    with browser(open_platform) as at:
        refused(sign_in(at), 401, "access_denied: Ada said no")
    issuer.fault = "down"
    with browser(open_platform) as at:
        assert at.get("/login/openid").status_code == 303, "its addresses are known still"


def test_a_provider_that_is_away_when_first_asked(open_platform, issuer) -> None:
    issuer.fault = "down"
    with browser(open_platform) as at:
        refused(at.get("/login/openid"), 502, "does not answer")
        issuer.fault = ""
        assert sign_in(at).status_code == 303


def test_a_new_key_of_the_provider_is_fetched(open_platform, issuer) -> None:
    for _ in range(2):
        with browser(open_platform) as at:
            assert sign_in(at).status_code == 303
        issuer.change_key()


def test_an_attempt_is_finished_once_and_by_the_browser_that_began_it(open_platform, issuer) -> None:
    with browser(open_platform) as mine, browser(open_platform) as theirs:
        there = mine.get("/login/openid").headers["location"]
        back = httpx.get(there, trust_env=False).headers["location"]
        theirs.get("/login/openid")
        refused(theirs.get(back), 401, "this browser did not start this login")
        refused(mine.get(back.replace("state=", "state=x")), 401, "this browser did not start this login")
        refused(mine.get(back), 401, "this browser did not start this login")  # the wrong state ended the attempt
        there = mine.get("/login/openid").headers["location"]
        back = httpx.get(there, trust_env=False).headers["location"]
        refused(mine.get(re.sub("iss=[^&]*", "iss=https%3A%2F%2Fother.example", back)), 401, "another provider")
        there = mine.get("/login/openid").headers["location"]
        back = httpx.get(there, trust_env=False).headers["location"]
        refused(mine.get(re.sub("&iss=[^&]*", "", back)), 401, "does not say which provider")
        there = mine.get("/login/openid").headers["location"]
        back = httpx.get(there, trust_env=False).headers["location"]
        assert mine.get(back).status_code == 303
        refused(mine.get(back), 401, "this browser did not start this login")
        mine.cookies.set("osmosis_sign_in", "AAAA" * 20)
        refused(mine.get(back), 401, "this browser did not start this login")


def test_nobody_is_sent_elsewhere_afterwards(open_platform) -> None:
    for elsewhere in ("https://evil.example/", "//evil.example", "/\\evil.example"):
        with browser(open_platform) as at:
            assert sign_in(at, elsewhere).headers["location"] == "/"


def test_logging_out_here_and_there(open_platform, issuer) -> None:
    with browser(open_platform) as at:
        sign_in(at)
        session = at.cookies["osmosis_session"]
        csrf = re.search(r'name="csrf" value="([^"]+)"', at.get("/").text)
        assert csrf
        left = at.post("/logout", data={"csrf": csrf[1]})
        page = at.get(left.headers["location"])
        assert "You are logged out here" in page.text
        at.cookies.set("osmosis_session", session)
        assert at.get("/").headers["location"].startswith("/login")
        there = urlsplit(at.get("/logout/openid").headers["location"])
        assert f"{there.scheme}://{there.netloc}{there.path}" == f"{issuer.url}/logout"
        assert parse_qs(there.query)["post_logout_redirect_uri"] == [f"{open_platform.url}/login"]


def test_somebody_who_is_removed_may_not_come_back_by_the_link_alone(platform, issuer) -> None:
    invite(platform, "ada@example.com")
    with browser(platform) as at:
        sign_in(at)
        assert httpx.delete(f"{platform.url}/api/cli/users/ada", headers=platform.headers).status_code == 204
        assert at.get("/").headers["location"].startswith("/login")
        refused(sign_in(at), 403, "nobody has invited")


def test_a_terminal_logs_in_through_the_provider(open_platform) -> None:
    asked = httpx.post(f"{open_platform.url}/api/cli/device/authorize", json={"device_name": "ada's laptop"}).json()
    with browser(open_platform) as at:
        page = f"/device?user_code={asked['user_code']}"
        login = at.get(page).headers["location"]
        wanted = re.search(r'href="(/login/openid[^"]*)"', at.get(login).text)
        assert wanted
        back = httpx.get(at.get(wanted[1]).headers["location"], trust_env=False).headers["location"]
        entered = at.get(back)
        assert entered.headers["location"] == page
        csrf = re.search(r'name="csrf" value="([^"]+)"', at.get(page).text)
        assert csrf
        answer = {"user_code": asked["user_code"], "answer": "approve", "csrf": csrf[1]}
        assert "approved" in at.post("/device", data=answer).text
    got = httpx.post(f"{open_platform.url}/api/cli/device/token", json={"device_code": asked["device_code"]}).json()
    who = httpx.get(f"{open_platform.url}/api/cli/verify", headers={"Authorization": f"Bearer {got['token']}"}).json()
    assert who["user"]["email"] == "ada@example.com"


def test_a_platform_without_a_provider_has_no_button(tmp_path) -> None:
    with running_platform(tmp_path / "data") as platform, browser(platform) as at:
        assert "Log in with" not in at.get("/login").text
        for path in ("/login/openid", "/login/openid/callback?state=x&code=y", "/logout/openid"):
            assert at.get(path).status_code == 404


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"CLIENT_ID": ""}, "OSMOSIS_OIDC_CLIENT_ID"),
        ({"ISSUER": "http://login.example.com"}, "OSMOSIS_OIDC_ISSUER=http://login.example.com"),
        ({"CLIENT_SECRET_FILE": "/nowhere"}, "not both"),
        ({"CLIENT_SECRET": "", "CLIENT_SECRET_FILE": "/nowhere"}, "OSMOSIS_OIDC_CLIENT_SECRET_FILE cannot be read"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_the_start(more, words) -> None:
    given = {"ISSUER": "https://login.example.com", "CLIENT_ID": "osmosis", "CLIENT_SECRET": "kept", **more}
    with pytest.raises(SettingsError, match=re.escape(words)) as refusal:
        OpenIdSettings.from_environ({f"OSMOSIS_OIDC_{name}": value for name, value in given.items()})
    assert "kept" not in str(refusal.value)


def test_the_secret_may_be_in_a_file(tmp_path) -> None:
    (tmp_path / "secret").write_text("from a file\n")
    environ = {
        "OSMOSIS_OIDC_ISSUER": "https://login.example.com",
        "OSMOSIS_OIDC_CLIENT_ID": "osmosis",
        "OSMOSIS_OIDC_CLIENT_SECRET_FILE": str(tmp_path / "secret"),
    }
    settings = OpenIdSettings.from_environ(environ)
    assert settings is not None
    assert (settings.secret, settings.name) == ("from a file", "login.example.com")
