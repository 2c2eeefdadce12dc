"""The page of workers: everybody sees them, who may direct one gets its buttons."""

from __future__ import annotations

from typing import Any

from osmosis.platform.auth import tokens, users

from .test_workers import Box, submit, worker_token


def headers_of(site: Any, handle: str) -> dict[str, str]:
    site.json("POST", "users", json={"handle": handle, "name": handle})
    with site.platform.db.write() as session:
        return {"Authorization": f"Bearer {tokens.issue(session, users.require(session, handle), 'x').text}"}


def test_the_page_shows_what_workers_are_and_do(ready: Any) -> None:
    mine = {"Authorization": ready.http.headers["authorization"]}
    assert "No machine runs jobs yet" in ready.anonymous.get("/workers", headers=mine).text
    has = {"cpus": 8, "memory_mb": 65536, "gpus": 2}
    box = Box(ready, worker_token(ready), labels={"gpu": "a100"}, resources=has, sandbox="level 1")
    submit(ready)
    box.started(box.claim())
    page = ready.anonymous.get("/workers", headers=mine).text
    for shown in ("box", "multiply-1", "8 cores, 64 GB, 2 GPUs", "gpu=a100", "level 1", 'aria-current="page">Workers'):
        assert shown in page, shown
    record = ready.anonymous.get("/workers.json", headers=mine).json()
    assert record == ready.json("GET", "workers")
    assert ready.anonymous.get("/workers", follow_redirects=False).status_code == 303, "for people who are logged in"


def test_buttons_are_for_who_may_direct_the_worker(ready: Any) -> None:
    box = Box(ready, worker_token(ready))
    submit(ready)
    order = box.claim()
    mine = {"Authorization": ready.http.headers["authorization"]}
    hers = headers_of(ready, "ada")
    page = ready.anonymous.get("/workers", headers=hers)
    assert (page.status_code, "box" in page.text, "Drain" in page.text.split("<table>")[1].split("</table>")[0]) == (
        200,
        True,
        False,
    )
    for what in ("drain", "remove"):
        refused = ready.anonymous.post(f"/workers/{box.id}/{what}", headers=hers)
        assert (refused.status_code, "directed by an operator of the platform" in refused.text) == (403, True)
    assert box.round(box.word(order))["drain"] is False
    ready.anonymous.post(f"/workers/{box.id}/drain", headers=mine)
    assert box.round(box.word(order))["drain"] is True
    ready.anonymous.post(f"/workers/{box.id}/remove", headers=mine)
    box.round(expect=403)
    assert ready.anonymous.post(f"/workers/{box.id}/remove", headers=mine).status_code == 404
    audited = [row["action"] for row in ready.json("GET", "platform/audit")["entries"]]
    assert {"worker.drain", "worker.remove"} <= set(audited)
