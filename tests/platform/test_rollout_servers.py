"""Rollout servers that register: checked once with their own key, kept alive, taken out; no key ever comes back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from osmosis.errors import ValidationError
from osmosis.platform import tables
from osmosis.platform.auth import tokens, users
from osmosis.platform.settings import PlatformSettings
from osmosis.platform.workspaces import rollout_servers
from osmosis.platform.workspaces.rollout_servers import ProbeTarget
from support.receivers import Answer, Asked, site as serving_site

KEY = "server-key-that-must-not-leak"
REGISTER = "rollout-server/register"
HEALTHY = {"status": "healthy", "agent_loop": "calculator", "active_rollouts": 2, "process": {"pid": 1}, "echo": KEY}


@dataclass
class Agent:
    """A server on loopback whose health is as told."""

    key: str | None = KEY
    answer: Any = field(default_factory=lambda: dict(HEALTHY))
    status: int = 200
    away: str | None = None
    asked: list[str] = field(default_factory=list)
    port: int = 0

    @property
    def body(self) -> dict[str, Any]:
        return {"host": "127.0.0.1", "port": self.port, "agent_loop_name": "calculator", "api_key": self.key}

    def say(self, asked: Asked) -> Answer:
        path = asked.path.strip("/")
        self.asked.append(path)
        right = path == "health" or asked.headers["Authorization"] == f"Bearer {self.key}"
        status = (307 if self.away else self.status) if right else 401
        return status, {"Location": self.away} if self.away else {}, json.dumps(self.answer).encode()


@pytest.fixture
def agent() -> Iterator[Agent]:
    found = Agent()
    with serving_site(found.say) as url:
        found.port = int(url.rpartition(":")[2])
        yield found


def listed(site: Any, **kwargs: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = site.json("GET", "rollout-servers", **kwargs)["rollout_servers"]
    return found


def bearer_only(site: Any) -> dict[str, str]:
    """As clients of generation 0.2 speak: no workspace."""
    return {"Authorization": site.http.headers["authorization"]}


def test_a_server_that_answers_with_its_key_is_healthy_and_listed_without_it(site, agent) -> None:
    said = site.json("POST", REGISTER, json=agent.body)
    assert said["status"] == "healthy"
    assert said["health_check_result"] == {
        "server_info": {"status": "healthy", "agent_loop": "calculator", "active_rollouts": 2}
    }
    assert agent.asked == ["platform/health"]
    [row] = listed(site)
    assert (row["id"], row["status"], row["port"]) == (said["id"], "healthy", agent.port)
    assert (row["agent_loop_name"], row["scope"], row["has_api_key"]) == ("calculator", "workspace", True)
    page = site.http.get("/demo/repository")
    assert f"127.0.0.1:{agent.port}" in page.text
    assert KEY not in f"{said} {row} {page.text}"


def test_the_key_lies_sealed_and_opens_for_its_own_row_only(site, agent) -> None:
    site.json("POST", REGISTER, json=agent.body)
    row = site.only(sa.select(tables.RolloutServer))
    assert rollout_servers.target_of(site.platform.vault, row).api_key == KEY
    assert KEY not in repr(rollout_servers.target_of(site.platform.vault, row))
    site.platform.db.close()
    for path in site.platform.settings.data_dir.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"status": 500}, "HTTP 500"),
        ({"answer": ["healthy"]}, "did not answer with a health report"),
        ({"answer": {"status": "draining"}}, "does not report that it is healthy"),
        ({"answer": {"status": "healthy", "more": "x" * 70_000}}, "more than"),
        ({"away": "http://127.0.0.1:1/"}, "HTTP 307"),
    ],
)
def test_a_server_that_is_not_well_is_registered_and_says_why(site, agent, change, words) -> None:
    for name, value in change.items():
        setattr(agent, name, value)
    said = site.json("POST", REGISTER, json=agent.body)
    assert said["status"] == "unhealthy"
    assert words in said["health_check_result"]["error"]
    assert listed(site)[0]["error"] == said["health_check_result"]["error"]


def test_a_wrong_key_and_a_closed_port_are_told_apart(site, agent) -> None:
    wrong = site.json("POST", REGISTER, json={**agent.body, "api_key": "another"})
    assert "rejects the api_key" in wrong["health_check_result"]["error"]
    closed = site.json("POST", REGISTER, json={**agent.body, "port": 1})
    assert "no server is listening" in closed["health_check_result"]["error"]


def test_a_server_without_a_key_is_asked_for_its_open_health(site, agent) -> None:
    assert site.json("POST", REGISTER, json={**agent.body, "api_key": None})["status"] == "healthy"
    assert agent.asked == ["health"]
    assert listed(site)[0]["has_api_key"] is False


@pytest.mark.parametrize(
    "change",
    [
        {"host": host}
        for host in (
            "http://127.0.0.1", "127.0.0.1/x", "me@127.0.0.1", "127.0.0.1:80", "127.1", "2130706433", "0x7f.0.0.1",
            "a b", "", "fe80::1%eth0", "[name]", "0.0.0.0", "169.254.169.254", "224.0.0.1", "::ffff:169.254.169.254",
        )
    ]
    + [{"port": 0}, {"port": 65536}, {"agent_loop_name": " "}, {"api_key": "a\r\nb"}, {"api_key": "ä"}],
)  # fmt: skip
def test_what_is_no_plain_address_is_refused_and_never_asked(shared, change) -> None:
    body = {"host": "127.0.0.1", "port": 1, "agent_loop_name": "x", "api_key": KEY, **change}
    refused = shared.json("POST", REGISTER, expect=400, json=body)
    assert KEY not in str(refused)
    assert listed(shared) == []


@pytest.mark.parametrize(
    ("settings", "private"),
    [
        ({}, True),
        ({"host": "::1"}, True),
        ({"public_url": "http://localhost:7575"}, True),
        ({"host": "0.0.0.0"}, False),
        ({"public_url": "https://osmosis.example.org"}, False),
        ({"host": "0.0.0.0", "private_servers": True}, True),
    ],
)
def test_only_a_platform_of_this_machine_asks_private_addresses_unasked(tmp_path: Path, settings, private) -> None:
    assert rollout_servers.takes_private(PlatformSettings(data_dir=tmp_path, **settings)) is private


@pytest.mark.parametrize("host", ["127.0.0.1", "10.1.2.3", "192.168.0.9", "::1", "::ffff:10.0.0.1", "localhost"])
async def test_a_shared_platform_contacts_no_private_address(agent, host) -> None:
    with pytest.raises(ValidationError, match="private address"):
        await rollout_servers.check(ProbeTarget(host, agent.port, KEY), private=False)
    assert agent.asked == []


def test_a_caller_without_a_workspace_registers_for_himself(site, agent) -> None:
    said = site.anonymous.post(f"/api/cli/{REGISTER}", json=agent.body, headers=bearer_only(site)).json()
    own = site.anonymous.get("/api/cli/rollout-servers", headers=bearer_only(site)).json()["rollout_servers"]
    assert [(row["id"], row["scope"]) for row in own] == [(said["id"], "user")]
    assert [row["id"] for row in listed(site)] == [said["id"]]
    assert "personal" in site.http.get("/demo/repository").text
    assert site.anonymous.post(f"/api/cli/{REGISTER}", json=agent.body).status_code == 401


def stranger(site: Any, *, member: bool) -> dict[str, str]:
    with site.platform.db.write() as session:
        user = users.create_user(session, "bob", email="bob@localhost", name="Bob")
        workspace = session.scalars(sa.select(tables.Workspace)).one()
        if member:
            session.add(tables.Member(workspace_id=workspace.id, user_id=user.id, role="member"))
        return {"Authorization": f"Bearer {tokens.issue(session, user, 'test').text}"}


def test_a_member_sees_the_workspaces_servers_and_touches_only_his_own(site, agent) -> None:
    for_workspace = site.json("POST", REGISTER, json=agent.body)["id"]
    own = {**agent.body, "host": "localhost"}
    site.anonymous.post(f"/api/cli/{REGISTER}", json=own, headers=bearer_only(site))
    bob = stranger(site, member=True)
    in_demo = {**bob, "X-Osmosis-Workspace": "demo"}
    seen = site.anonymous.get("/api/cli/rollout-servers", headers=in_demo).json()["rollout_servers"]
    assert [row["id"] for row in seen] == [for_workspace]
    assert site.anonymous.get("/api/cli/rollout-servers", headers=bob).json()["rollout_servers"] == []
    for method, path in (("POST", f"{for_workspace}/heartbeat"), ("DELETE", for_workspace)):
        assert site.anonymous.request(method, f"/api/cli/rollout-server/{path}", headers=bob).status_code == 404
    assert len(listed(site)) == 2


def test_who_is_no_member_cannot_register_for_a_workspace(site, agent) -> None:
    headers = {**stranger(site, member=False), "X-Osmosis-Workspace": "demo"}
    assert site.anonymous.post(f"/api/cli/{REGISTER}", json=agent.body, headers=headers).status_code == 403
    assert agent.asked == []


def test_registering_again_replaces_and_an_old_goodbye_takes_nothing_out(site, agent) -> None:
    first, second = (site.json("POST", REGISTER, json=agent.body)["id"] for _ in range(2))
    site.json("DELETE", f"rollout-server/{first}", expect=404)
    site.json("POST", f"rollout-server/{first}/heartbeat", expect=404)
    assert [row["id"] for row in listed(site)] == [second]
    site.json("DELETE", f"rollout-server/{second}", expect=204)
    assert listed(site) == []


def age(site: Any, **ago: float) -> None:
    with site.platform.db.write() as session:
        row = session.scalars(sa.select(tables.RolloutServer)).one()
        row.last_seen -= timedelta(**ago)


def test_a_silent_server_is_gone_until_it_is_heard_of_again(site, agent) -> None:
    said = site.json("POST", REGISTER, json=agent.body)
    age(site, minutes=4)
    assert listed(site)[0]["status"] == "gone"
    assert 'class="badge gone"' in site.http.get("/demo/repository").text
    assert site.json("POST", f"rollout-server/{said['id']}/heartbeat")["status"] == "healthy"
    assert listed(site)[0]["status"] == "healthy"
    assert agent.asked == ["platform/health"]  # a heartbeat of a healthy server asks nothing
    age(site, days=2)
    assert listed(site) == []
    site.json("POST", REGISTER, json={**agent.body, "host": "localhost"})
    assert site.stored(sa.select(tables.RolloutServer.host)) == ["localhost"]


def test_an_unhealthy_server_is_asked_again_with_its_heartbeat(site, agent) -> None:
    agent.status = 503
    said = site.json("POST", REGISTER, json=agent.body)
    path = f"rollout-server/{said['id']}/heartbeat"
    assert site.json("POST", path) == {"id": said["id"], "status": "unhealthy"}
    agent.status = 200
    assert site.json("POST", path)["status"] == "healthy"
    assert (listed(site)[0]["status"], listed(site)[0]["error"]) == ("healthy", None)


def test_the_list_comes_in_pages(site, agent) -> None:
    for host in ("127.0.0.1", "localhost", "127.0.0.2"):
        site.json("POST", REGISTER, json={**agent.body, "host": host})
    first = site.json("GET", "rollout-servers?limit=2")
    assert (len(first["rollout_servers"]), first["total_count"], first["next_offset"]) == (2, 3, 2)
    assert len(site.json("GET", "rollout-servers?limit=2&offset=2")["rollout_servers"]) == 1
