"""Login of a command line of generation 0.2: approved by a person, sent to this machine only."""

from __future__ import annotations

import html
import re
from urllib.parse import parse_qs, urlsplit

import pytest

from osmosis.platform.auth import tokens, users
from osmosis.platform.web.session import SESSION_COOKIE

CALLBACK = "http://localhost:8976/callback"
STATE = "state-of-the-command-line"


@pytest.fixture
def browser(shared):
    with shared.platform.db.write() as session:
        token = tokens.issue(session, users.ensure_owner(session, "x"), "browser", kind="session").text
    shared.anonymous.cookies.set(SESSION_COOKIE, token)
    yield shared.anonymous
    shared.anonymous.cookies.clear()


def opened(browser, **changed):
    query = {"state": STATE, "port": "8976", "device_name": "<b>laptop</b>", "redirect_uri": CALLBACK, **changed}
    return browser.get("/cli-auth", params=query, follow_redirects=False)


def form_of(page) -> dict[str, str]:
    fields = re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page.text.partition('action="/cli-auth"')[2])
    return {name: html.unescape(value) for name, value in fields}


def test_from_the_page_to_a_token_that_works(shared, browser) -> None:
    page = opened(browser)
    assert page.status_code == 200
    assert "&lt;b&gt;laptop&lt;/b&gt;" in page.text
    assert "form-action 'self' http://localhost:8976;" in page.headers["Content-Security-Policy"]
    sent = browser.post("/cli-auth", data={**form_of(page), "answer": "approve"}, follow_redirects=False)
    assert sent.status_code == 303
    back = urlsplit(sent.headers["location"])
    assert f"{back.scheme}://{back.netloc}{back.path}" == CALLBACK
    answer = parse_qs(back.query)
    assert answer["state"] == [STATE]
    browser.cookies.clear()
    verified = browser.get("/api/cli/verify", headers={"Authorization": f"Bearer {answer['token'][0]}"}).json()
    assert (verified["valid"], verified["organization"]["name"]) == (True, "demo")
    assert {"id", "email", "name"} <= set(verified["user"])


def test_a_denied_login_gets_no_token(browser) -> None:
    sent = browser.post("/cli-auth", data={**form_of(opened(browser)), "answer": "deny"}, follow_redirects=False)
    answer = parse_qs(urlsplit(sent.headers["location"]).query)
    assert (answer["error"], answer["state"], "token" in answer) == (["access_denied"], [STATE], False)


@pytest.mark.parametrize(
    "changed",
    [
        {"redirect_uri": "http://evil.example:8976/callback"},
        {"redirect_uri": "https://localhost:8976/callback"},
        {"redirect_uri": "http://localhost@evil.example:80/callback"},
        {"redirect_uri": "http://localhost/callback"},
        {"redirect_uri": "http://localhost:8976/callback?x=1"},
        {"redirect_uri": "http://localhost:8976/callback#x"},
        {"redirect_uri": "http://localhost:8976\\@evil.example/"},
        {"redirect_uri": "http://[::1/callback"},
        {"redirect_uri": "javascript:alert(1)"},
        {"port": "8977"},
        {"state": ""},
        {"state": "short"},
        {"state": "with a\nline break"},
    ],
)
def test_nothing_is_sent_elsewhere(browser, changed) -> None:
    assert opened(browser, **changed).status_code == 400
    form = {"csrf": form_of(opened(browser))["csrf"], "redirect_uri": CALLBACK, "state": STATE, **changed}
    if "port" not in changed:
        sent = browser.post("/cli-auth", data={**form, "answer": "approve"}, follow_redirects=False)
        assert (sent.status_code, "location" in sent.headers) == (400, False)


def test_a_form_of_another_site_issues_nothing(browser) -> None:
    form = {**form_of(opened(browser)), "answer": "approve"}
    assert browser.post("/cli-auth", data={**form, "csrf": "guess"}, follow_redirects=False).status_code == 403
    away = {"origin": "http://evil.example"}
    assert browser.post("/cli-auth", data=form, headers=away, follow_redirects=False).status_code == 403


def test_a_person_who_is_not_logged_in_logs_in_first_and_comes_back(shared) -> None:
    asked = opened(shared.anonymous)
    assert asked.status_code == 303
    back = parse_qs(urlsplit(asked.headers["location"]).query)["next"][0]
    assert back.startswith("/cli-auth?")
    assert parse_qs(urlsplit(back).query)["redirect_uri"] == [CALLBACK]
