"""How often somebody may ask: by address before a login, by account after it; others are not held up."""

from __future__ import annotations

import pytest

from osmosis.errors import RateLimited
from osmosis.platform.auth import rate_limits, tokens, users
from osmosis.platform.auth.rate_limits import RateLimits

from .test_workers import Box


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def limits(**per_minute: int) -> tuple[RateLimits, Clock]:
    clock = Clock()
    return RateLimits(clock, {**rate_limits.PER_MINUTE, **per_minute}), clock


def passes(rates: RateLimits, key: str, times: int) -> int:
    """How many of these are let through."""
    done = 0
    for _ in range(times):
        try:
            rates.take("login", key)
        except RateLimited:
            continue
        done += 1
    return done


def test_a_burst_passes_and_then_an_even_rate() -> None:
    rates, clock = limits(login=60)
    assert passes(rates, "a", 100) == 60
    assert passes(rates, "b", 10) == 10  # another address is nobody's concern
    clock.now += 5
    assert passes(rates, "a", 100) == 5
    clock.now += 60
    assert passes(rates, "a", 100) == 60


def test_who_is_refused_is_told_when_to_come_back_and_is_then_let_in() -> None:
    rates, clock = limits(login=6)
    passes(rates, "a", 6)
    with pytest.raises(RateLimited) as refused:
        rates.take("login", "a")
    wait = refused.value.details["retry_after"]
    assert wait == 10
    clock.now += wait
    rates.take("login", "a")


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limits, "MAX_KEYS", 100)
    rates, clock = limits()
    for number in range(1000):
        rates.take("login", str(number))
    assert len(rates._arrivals) <= 100
    clock.now += 120
    for number in range(101):
        rates.take("login", f"new {number}")
    assert len(rates._arrivals) <= 101


def ask(site, path: str, **kwargs):
    return site.anonymous.post(path, **kwargs)


def test_logins_are_limited_by_address_with_a_time_to_come_back(site) -> None:
    object.__setattr__(site.platform, "rates", limits(login=3)[0])
    form = {"token": "guess", "csrf": "x"}
    for path, body in (
        ("/api/cli/device/authorize", {"json": {"deviceName": "x"}}),
        ("/api/cli/bootstrap", {"json": {}, "headers": {"Authorization": "Bearer osb_guess"}}),
        ("/login", {"data": form}),
    ):
        assert ask(site, path, **body).status_code != 429, path
    for path, body in (
        ("/api/cli/device/authorize", {"json": {"deviceName": "x"}}),
        ("/api/cli/bootstrap", {"json": {}}),
        ("/login", {"data": form}),
        ("/login/link", {"data": {"code": "x"}}),
    ):
        refused = ask(site, path, **body)
        assert refused.status_code == 429, path
        assert int(refused.headers["Retry-After"]) == 20
    said = ask(site, "/api/cli/device/authorize", json={"deviceName": "x"}).json()
    assert (said["code"], said["hint"]) == ("RATE_LIMITED", "try again in 20 s")
    assert site.json("GET", "verify")["user"]  # whoever is logged in is not held up
    poll = ask(site, "/api/cli/device/token", json={"device_code": "x"})
    assert poll.status_code == 400  # nor is a terminal that waits for its approval


def test_changes_are_limited_by_account_and_reading_is_not(site) -> None:
    object.__setattr__(site.platform, "rates", limits(write=2)[0])
    with site.platform.db.write() as session:
        other = users.create_user(session, "bob", email="", name="Bob")
        text = tokens.issue(session, other, "x").text
    for _ in range(2):
        site.json("POST", "tokens", json={"name": "x"})
    refused = site.http.post("/api/cli/tokens", json={"name": "x"})
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "30")
    second = site.json("POST", "tokens", expect=429, json={"name": "y"})  # another token is the same account
    assert second["message"].startswith("too many changes")
    for _ in range(5):
        site.json("GET", "tokens")
    bob = {"Authorization": f"Bearer {text}"}
    assert ask(site, "/api/cli/tokens", headers=bob, json={"name": "x"}).status_code == 200
    page = site.anonymous.post(
        "/tokens", headers={"Authorization": site.http.headers["authorization"]}, data={"name": "x"}
    )
    assert (page.status_code, page.headers["Retry-After"]) == (429, "30")


def test_workers_of_one_token_take_nothing_from_their_owner_and_are_not_held_up_by_changes(site) -> None:
    object.__setattr__(site.platform, "rates", limits(write=2, worker=30)[0])
    token = site.json("POST", "tokens", json={"name": "fleet", "scopes": ["worker"]})["token"]
    box = Box(site, token)
    for _ in range(29):
        assert box.round()["start"] is None
    assert box.round(expect=429)["message"].startswith("too many messages of workers")
    site.json("POST", "tokens", json={"name": "x"})
