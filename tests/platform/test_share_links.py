"""Links to a run: who makes them, and what whoever has one sees: that run's report and rollouts until it ends."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from osmosis.platform import tables
from osmosis.platform.auth import tokens, users
from osmosis.records.base import utc_now
from support.platform_data import add_rollouts, add_run, rollout

from .conftest import Site, path_of


@pytest.fixture
def run(site: Site) -> str:
    run_id = add_run(site.platform, site.workspace_id, tags=["inner-tag"], note="a note for us")
    add_rollouts(site.platform, run_id, [rollout(row, 0) for row in range(3)])
    return run_id


def share(site: Site, **body: Any) -> tuple[str, str]:
    made = site.json("POST", "eval-runs/multiply-1/share-links", json=body)
    return made["id"], path_of(made["url"])


def test_a_link_shows_the_run_to_whoever_has_it(site: Site, run: str) -> None:
    _, link = share(site)
    page = site.anonymous.get(link)
    assert page.status_code == 200
    assert "multiply-1" in page.text
    assert f"until {(utc_now() + timedelta(days=7)).strftime('%-d %B %Y')}" in page.text
    assert page.headers["referrer-policy"] == "no-referrer"
    for private in ("OPENAI_API_KEY", "inner-tag", "a note for us", f"/runs/{run}", "/demo/", "csrf"):
        assert private not in page.text
    links = set(re.findall(rf'href="({link}/[^"]+)"', page.text))
    assert f"{link}/rollouts" in links
    for address in (*links, f"{link}/rollouts/0/0", f"{link}/rollouts/0/0.json"):
        assert site.anonymous.get(address.replace("&amp;", "&")).status_code == 200, address
    folder = site.platform.settings.runs_dir / run / "artifacts" / "r-0-0" / "artifacts"
    folder.mkdir(parents=True)
    (folder / "secret.txt").write_text("for members")
    rollout_page = site.anonymous.get(f"{link}/rollouts/0/0").text
    assert ("What is 2 times 3?" in rollout_page, "secret.txt" in rollout_page) == (True, False)
    assert "secret.txt" in site.http.get(f"/runs/{run}/rollouts/0/0").text
    for other in ("config", "logs", "config.json", "index.json", "events?of=logs", "rollouts/../config", "share"):
        assert site.anonymous.get(f"{link}/{other}").status_code == 404, other
    assert site.anonymous.post(f"{link}/rollouts/0/0/annotate", data={"label": "right"}).status_code in (404, 405)
    assert site.anonymous.get(f"/runs/{run}", follow_redirects=False).headers["location"].startswith("/login")
    assert site.anonymous.get("/api/cli/eval-runs", headers={"Authorization": f"Bearer {link}"}).status_code == 401


def test_a_failure_is_shown_without_the_lines_of_its_log(site: Site, run: str) -> None:
    with site.platform.db.write() as session:
        failed = session.get_one(tables.Run, run)
        failed.status = "failed"
        failed.failure = {"phase": "agent", "category": "server_died", "message": "it died", "traceback": "a log line"}
    _, link = share(site)
    shown = site.anonymous.get(link).text
    assert "it died" in shown
    assert "a log line" not in shown + site.anonymous.get(f"{link}/events").text
    assert "a log line" in site.http.get(f"/runs/{run}").text


def test_expired_revoked_and_changed_links_show_nothing(site: Site, run: str) -> None:
    (first, old), (second, revoked) = share(site), share(site, expires_in=3600)
    listed = site.json("GET", "eval-runs/multiply-1/share-links")["links"]
    assert [link["id"] for link in listed] == [second, first]
    assert not {"url", "hash"} & set(listed[0])
    site.json("DELETE", f"eval-runs/multiply-1/share-links/{second}", expect=204)
    with site.platform.db.write() as session:
        session.get_one(tables.ShareLink, first).expires_at = utc_now() - timedelta(seconds=1)
        actions = list(session.scalars(sa.select(tables.AuditEntry.action).order_by(tables.AuditEntry.id)))
    assert actions[-3:] == ["run.share", "run.share", "run.unshare"]
    for link, words in ((old, "it has expired"), (revoked, "was revoked"), (f"{old}x", "was revoked")):
        for path in ("", "/rollouts", "/events"):
            answer = site.anonymous.get(link + path)
            assert (answer.status_code, words in answer.text) == (404, True)
    assert site.json("GET", "eval-runs/multiply-1/share-links") == {"links": []}
    site.json("POST", "eval-runs/multiply-1/share-links", json={"expires_in": 10**9}, expect=400)


def test_a_viewer_shares_nothing_and_a_member_does_on_the_page(site: Site, run: str) -> None:
    with site.platform.db.write() as session:
        workspace = session.scalars(sa.select(tables.Workspace)).one()
        looker = users.create_user(session, "looker", email="looker@example.com", name="looker")
        session.add(tables.Member(workspace_id=workspace.id, user_id=looker.id, role="viewer"))
        session.flush()
        token = tokens.issue(session, looker, "x").text
    headers = {"Authorization": f"Bearer {token}", "X-Osmosis-Workspace": "demo"}
    refused = site.anonymous.post("/api/cli/eval-runs/multiply-1/share-links", json={}, headers=headers)
    assert refused.status_code == 403
    assert site.anonymous.get(f"/runs/{run}/share", headers=headers).status_code == 403
    assert f'action="/runs/{run}/share"' in site.http.get(f"/runs/{run}").text
    made = site.http.post(f"/runs/{run}/share", data={"days": "3"})
    (url,) = re.findall(r"<pre[^>]*>(http[^<]+/shared/[^<]+)</pre>", made.text)
    assert site.anonymous.get(path_of(url)).status_code == 200
    (revoke,) = re.findall(r'action="([^"]+/revoke)"', made.text)
    assert site.http.post(revoke, follow_redirects=False).status_code == 303
    assert site.anonymous.get(path_of(url)).status_code == 404
