"""Pages of a running platform, as a browser without JavaScript asks for them."""

import html
import re
import time
from collections.abc import Iterator

import httpx
import pytest

from osmosis.platform import tables
from osmosis.platform.auth import users
from osmosis.platform.runs import lifecycle
from osmosis.platform.workspaces import secrets
from osmosis.records.run.rollout import Score
from osmosis.records.run.status import RunStatus
from support.platform_app import RunningPlatform, running_platform
from support.platform_data import add_rollouts, add_run, report, rollout, timeout

EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    with running_platform(tmp_path_factory.mktemp("web") / "data") as running:
        yield running


@pytest.fixture
def guest(platform: RunningPlatform) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=platform.url) as client:
        yield client


@pytest.fixture
def browser(platform: RunningPlatform) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=platform.url) as client:
        assert log_in(client, platform.token).headers["location"] == "/"
        yield client


@pytest.fixture
def script(platform: RunningPlatform) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=platform.url, headers={"Authorization": f"Bearer {platform.token}"}) as client:
        yield client


def csrf(page: str) -> str:
    found = re.search(r'name="csrf" value="([^"]+)"', page)
    assert found, page[:500]
    return found[1]


def log_in(client: httpx.Client, token: str, next_page: str = "/") -> httpx.Response:
    form = csrf(client.get("/login").text)
    return client.post("/login", data={"token": token, "csrf": form, "next": next_page})


# --- getting in --------------------------------------------------------------------------------------------------


def test_without_a_session_a_page_leads_to_the_login_and_back(guest: httpx.Client, platform: RunningPlatform) -> None:
    away = guest.get("/runs/some-run?x=1")
    assert (away.status_code, away.headers["location"]) == (303, "/login?next=%2Fruns%2Fsome-run%3Fx%3D1")
    entered = log_in(guest, platform.token, "/secrets-are-not-here?x=1")
    assert (entered.status_code, entered.headers["location"]) == (303, "/secrets-are-not-here?x=1")
    cookie = next(value for value in entered.headers.get_list("set-cookie") if value.startswith("osmosis_session="))
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert guest.get("/").status_code == 200


def test_the_bootstrap_token_lets_the_owner_in(guest: httpx.Client, platform: RunningPlatform) -> None:
    token = (platform.parts.settings.data_dir / "bootstrap.token").read_text()
    assert log_in(guest, token).status_code == 303
    assert "demo" in guest.get("/").text


@pytest.mark.parametrize("token", ["osm_wrong", "osb_wrong", ""])
def test_a_wrong_token_stays_outside(guest: httpx.Client, token: str) -> None:
    answer = log_in(guest, token)
    assert answer.status_code in (401, 400)
    assert guest.get("/").status_code == 303


def test_a_session_ends_with_the_logout_everywhere(platform: RunningPlatform, browser: httpx.Client) -> None:
    stolen = browser.cookies["osmosis_session"]
    browser.post("/logout", data={"csrf": csrf(browser.get("/").text)})
    again = httpx.get(platform.url, cookies={"osmosis_session": stolen})
    assert again.status_code == 303


def test_forms_need_their_csrf_value_and_our_origin(browser: httpx.Client) -> None:
    good = csrf(browser.get("/").text)
    assert browser.post("/logout").status_code == 403
    assert browser.post("/logout", data={"csrf": "x" + good}).status_code == 403
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert browser.post("/logout", data={"csrf": good}, headers=headers).status_code == 403
    assert browser.get("/").status_code == 200


def test_a_login_form_of_another_browser_is_refused(platform: RunningPlatform) -> None:
    with httpx.Client(base_url=platform.url) as one, httpx.Client(base_url=platform.url) as other:
        form = csrf(one.get("/login").text)
        other.get("/login")
        assert other.post("/login", data={"token": platform.token, "csrf": form}).status_code == 403


def test_a_login_link_works_once(guest: httpx.Client, script: httpx.Client, platform: RunningPlatform) -> None:
    link = script.post("/api/cli/browser-login").json()["url"]
    assert link.startswith(platform.url)
    asked = guest.get(link)
    assert guest.get("/").status_code == 303, "opening the link alone logs nobody in"
    data = {"csrf": csrf(asked.text), "code": link.rpartition("=")[2]}
    assert guest.post("/login/link", data=data).headers["location"] == "/"
    assert guest.get("/").status_code == 200
    guest.cookies.delete("osmosis_session")
    data["csrf"] = csrf(guest.get(link).text)
    assert guest.post("/login/link", data=data).status_code == 401


@pytest.mark.parametrize(("answer", "code"), [("approve", 200), ("deny", 400)])
def test_a_device_is_approved_or_denied(browser: httpx.Client, guest: httpx.Client, answer: str, code: int) -> None:
    device = guest.post("/api/cli/device/authorize", json={"deviceName": f"laptop {EVIL}"}).json()
    page = browser.get(device["verification_uri_complete"]).text
    assert device["user_code"] in page
    assert EVIL not in page
    assert html.escape(EVIL) in page
    data = {"csrf": csrf(page), "user_code": device["user_code"], "answer": answer}
    assert browser.post("/device", data={**data, "csrf": ""}).status_code == 403
    assert browser.post("/device", data=data).status_code == 200
    polled = guest.post("/api/cli/device/token", json={"device_code": device["device_code"]})
    assert polled.status_code == code
    assert ("token" in polled.json()) == (answer == "approve")
    assert browser.post("/device", data=data).status_code == 409


# --- what pages say ------------------------------------------------------------------------------------------------


def text_of(page: str) -> str:
    page = re.sub(r'<span class="t-\w+">(.*?)</span>', r"\1", page)  # the tokens of highlighted code
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def test_odd_requests_are_pages_too(script: httpx.Client) -> None:
    for path, status in (
        ("/?at=x", 400),
        ("/runs/none", 404),
        ("/runs/none/rollouts?at=x", 404),
        ("/runs/none/odd", 404),
    ):
        answer = script.get(path)
        assert answer.status_code == status
        assert answer.headers["content-type"].startswith("text/html")
    assert script.get("/?at=-5").status_code == 200


def test_every_page_has_the_security_headers(script: httpx.Client) -> None:
    for path in ("/", "/login", "/demo/secrets", "/runs/none", "/static/osmosis.css"):
        answer = script.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_run_page_shows_the_figures_of_its_report(script: httpx.Client, platform: RunningPlatform) -> None:
    run_id = add_run(platform.parts, platform.workspace_id, "figures")
    page = script.get(f"/runs/{run_id}")
    assert page.status_code == 200
    said = text_of(page.text)
    for expected in (
        "finished",
        "Mean (failures as 0) 0.700",
        "95 % confidence 0.550 to 0.830",
        "Pass rate 70.0 %",
        "15,550",
        "$0.0213",
    ):
        assert expected in said
    assert "the agent did not finish within 450 s" in said
    assert "lower batch_size" in said, "a failure says what to do"
    assert "openai/gpt-5-mini" in said
    by_name = script.get("/demo/evals/figures")
    assert by_name.headers["location"] == f"/runs/{run_id}"


def test_the_overview_filters(script: httpx.Client, platform: RunningPlatform) -> None:
    add_run(platform.parts, platform.workspace_id, "needle_1", "pending")
    add_run(platform.parts, platform.workspace_id, "needleX1", "finished", model_path="vendor/special")
    assert "needleX1" not in script.get("/", params={"q": "needle_1"}).text, "_ is no wildcard"
    assert "needle_1" not in script.get("/", params={"q": "needle", "status": "finished"}).text
    assert "needleX1" in script.get("/", params={"q": "SPECIAL"}).text
    assert "No runs match" in script.get("/", params={"q": EVIL}).text
    assert "No runs match" in script.get("/", params={"kind": "training"}).text


def test_rollouts_are_searched_in_an_index_that_goes_with_the_run(
    script: httpx.Client, platform: RunningPlatform
) -> None:
    run_id = add_run(platform.parts, platform.workspace_id, "many")
    rollouts = [rollout(row, 0, 0.0 if row % 4 == 0 else 1.0) for row in range(60)]
    rollouts[7] = rollout(7, 0, failure=timeout())
    add_rollouts(platform.parts, run_id, rollouts)
    assert "61 times" in script.get(f"/runs/{run_id}/rollouts", params={"q": '"61 times"'}).text
    record = script.get(f"/runs/{run_id}/rollouts.json", params={"outcome": "failed"}).json()
    assert [line["label"] for line in record["found"]["lines"]] == ["7/0"]
    assert len(script.get(f"/runs/{run_id}/rollouts/export.json").json()) == 60
    index = platform.parts.settings.viewer_index(run_id)
    assert list(index.parent.glob(f"{index.stem}*.db"))
    headers = {"X-Osmosis-Workspace": "demo"}
    assert script.delete("/api/cli/eval-runs/many", headers=headers).status_code == 204
    assert not list(index.parent.glob(f"{index.stem}*")), "what was written goes with the run"


def test_an_address_of_nothing_is_a_page_for_a_browser_alone(script: httpx.Client, guest: httpx.Client) -> None:
    shown = guest.get("/nope/at/all", headers={"accept": "text/html,*/*"})
    assert (shown.status_code, "<h1>Not found</h1>" in shown.text) == (404, True)
    for path, accept in (("/nope/at/all", "*/*"), ("/api/cli/nope", "text/html")):
        assert script.get(path, headers={"accept": accept}).json()["code"] == "NOT_FOUND"
    assert script.post("/nope/at/all", headers={"accept": "text/html"}).status_code == 404


def test_a_rollout_is_shown_whole(script: httpx.Client, platform: RunningPlatform) -> None:
    run_id = add_run(platform.parts, platform.workspace_id, "whole")
    judged = rollout(3, 1, scores={"style": Score(name="style", value=0.25, reason=f"weak {EVIL}")})
    judged.messages.append({"role": "user", "content": EVIL})
    add_rollouts(platform.parts, run_id, [judged, rollout(3, 0), rollout(4, 0, failure=timeout())])
    page = script.get(f"/runs/{run_id}/rollouts/3/1").text
    assert EVIL not in page
    said = text_of(page)
    for expected in ("What is 5 times 4?", "calls multiply", '"a": 5', '"result": 20', "style 0.250", f"weak {EVIL}"):
        assert expected in said
    assert f"/runs/{run_id}/rollouts/4/0" in page
    failed = text_of(script.get(f"/runs/{run_id}/rollouts/4/0").text)
    assert "This rollout failed" in failed
    assert "line 12, in run" in failed
    raw = script.get(f"/runs/{run_id}/rollouts/3/1?raw=true")
    assert raw.json()["rollout_id"] == "r-3-1"
    assert raw.headers["content-type"] == "application/json"
    assert script.get(f"/runs/{run_id}/rollouts/9/9").status_code == 404


def test_a_label_is_kept_and_found(browser: httpx.Client, guest: httpx.Client, platform: RunningPlatform) -> None:
    run_id = add_run(platform.parts, platform.workspace_id, "labelled")
    add_rollouts(platform.parts, run_id, [rollout(row, 0) for row in range(3)])
    address = f"/runs/{run_id}/rollouts/1/0"
    form = {"label": "wrong", "comment": EVIL, "csrf": csrf(browser.get(address).text)}
    assert guest.post(f"{address}/annotate", data=form).headers["location"].startswith("/login")
    assert browser.post(f"{address}/annotate", data={**form, "csrf": "odd"}).status_code == 403
    assert browser.post(f"{address}/annotate", data={**form, "score": "much"}).status_code == 400
    kept = browser.post(f"{address}/annotate", data=form)
    assert (kept.status_code, kept.headers["location"]) == (303, f"{address}#judgement")
    page = browser.get(address).text
    assert EVIL not in page
    assert "wrong" in text_of(page)
    listed = browser.get(f"/runs/{run_id}/rollouts.json", params={"label": "wrong"}).json()["found"]
    assert [line["label"] for line in listed["lines"]] == ["1/0"]


def test_logs_page_back_and_filter(script: httpx.Client, platform: RunningPlatform) -> None:
    run_id = add_run(platform.parts, platform.workspace_id, "logged")
    with platform.parts.db.write() as session:
        run = session.get_one(tables.Run, run_id)
        for number in range(250):
            lifecycle.log(session, run, f"line <{number}>", level="error" if number == 3 else "info")
        lifecycle.log(session, run, "a detail", level="debug")
    newest = script.get(f"/runs/{run_id}/logs").text
    assert "line &lt;249&gt;" in newest
    assert "line &lt;3&gt;" not in newest
    assert "a detail" not in newest
    assert "a detail" in script.get(f"/runs/{run_id}/logs?level=debug").text
    older = re.search(r'href="(\?cursor=[^"]+)">Older', newest)
    assert older
    assert "line &lt;3&gt;" in script.get(f"/runs/{run_id}/logs{html.unescape(older[1])}").text
    assert re.findall(r"line &lt;(\d+)&gt;", script.get(f"/runs/{run_id}/logs?level=error").text) == ["3"]


def test_secrets_are_names_never_values(script: httpx.Client, platform: RunningPlatform) -> None:
    value = "never-on-a-page-0123"
    with platform.parts.db.write() as session:
        owner = users.ensure_owner(session, "local")
        workspace = session.get_one(tables.Workspace, platform.workspace_id)
        for scope in ("user", "workspace"):
            slot = secrets.slot_for(workspace, owner, "owner", scope=scope, name="API_KEY")
            secrets.store(session, platform.parts.vault, slot, value, owner.id)
    page = script.get("/demo/secrets").text
    assert value not in page
    said = text_of(page)
    assert "API_KEY personal overrides the workspace’s" in said
    assert "API_KEY workspace overridden by your personal one" in said


def test_datasets(script: httpx.Client, platform: RunningPlatform) -> None:
    with platform.parts.db.write() as session:
        row = tables.Dataset(
            workspace_id=platform.workspace_id,
            name="numbers",
            format="jsonl",
            status="uploaded",
            size=2048,
            row_count=4,
            preview=[{"user_prompt": EVIL, "n": 0}, {"user_prompt": "second", "extra": {"a": None}}],
        )
        session.add(row)
        session.flush()
        dataset_id = row.id
    assert "numbers uploaded 4 jsonl 2.0 kB" in text_of(script.get("/demo/datasets").text)
    page = script.get(f"/datasets/{dataset_id}").text
    assert EVIL not in page
    assert 'second {"a": null}' in text_of(page)


def test_a_run_is_stopped(browser: httpx.Client, platform: RunningPlatform) -> None:
    run_id = add_run(platform.parts, platform.workspace_id, "stoppable", "pending")
    page = browser.get(f"/runs/{run_id}").text
    assert browser.post(f"/runs/{run_id}/stop").status_code == 403
    browser.post(f"/runs/{run_id}/stop", data={"csrf": csrf(page)})
    with platform.parts.db.read() as session:
        assert session.get_one(tables.Run, run_id).status == "stopped"
    assert f"/runs/{run_id}/stop" not in browser.get(f"/runs/{run_id}").text


def test_what_failed_is_retried(browser: httpx.Client, platform: RunningPlatform) -> None:
    run_id = add_run(platform.parts, platform.workspace_id, "again", secret_scopes={}, dataset_id=None)
    with platform.parts.db.write() as session:
        row = tables.Dataset(workspace_id=platform.workspace_id, name="again", format="jsonl", status="uploaded")
        session.add(row)
        session.flush()
        session.get_one(tables.Run, run_id).dataset_id = row.id
    add_rollouts(platform.parts, run_id, [rollout(0, 0), rollout(0, 1, failure=timeout())])
    page = browser.get(f"/runs/{run_id}").text
    assert "Retry failed rollouts" in page
    assert browser.post(f"/runs/{run_id}/retry").status_code == 403
    assert browser.post(f"/runs/{run_id}/retry", data={"csrf": csrf(page)}).status_code == 303
    with platform.parts.db.read() as session:
        assert session.get_one(tables.Run, run_id).status == "pending"
        assert session.query(tables.Rollout).filter_by(run_id=run_id).count() == 1


# --- live ----------------------------------------------------------------------------------------------------------


def test_events_bring_new_figures_and_end_with_the_run(script: httpx.Client, platform: RunningPlatform) -> None:
    run_id = add_run(platform.parts, platform.workspace_id, "live", "running", report=report(completed=1).to_dict())
    page = script.get(f"/runs/{run_id}").text
    assert f'hx-sse:connect="/runs/{run_id}/events?was=running"' in page
    assert "hx-get" not in page, "one stream and nothing beside it"
    seen: list[str] = []
    finished, fetches = False, 0
    with script.stream("GET", f"/runs/{run_id}/events?was=running", timeout=30) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            fetches += 'hx-target="#actions"' in line
            if "of 30 rollouts" in line:
                seen.append(text_of(line.removeprefix("data: ")))
                if len(seen) == 1:
                    add_rollouts(platform.parts, run_id, [rollout(0, 0)])
                elif "1 of 30" in line and not finished:
                    finished = True
                    with platform.parts.db.write() as session:
                        lifecycle.switch_status(session, session.get_one(tables.Run, run_id), RunStatus.FINISHED)
            if line == "event: end":
                break
        else:
            raise AssertionError(f"the stream ended without a word: {seen}")
    assert "0 of 30" in seen[0]
    assert "1 of 30" in seen[-1]
    assert fetches == 1, "its buttons are others once it is over"
    assert "hx-sse:connect" not in script.get(f"/runs/{run_id}").text


def test_a_closed_page_frees_its_place(script: httpx.Client, platform: RunningPlatform) -> None:
    run_id = add_run(platform.parts, platform.workspace_id, "left", "running")
    with script.stream("GET", f"/runs/{run_id}/events", timeout=30) as answer:
        next(answer.iter_lines())
        assert platform.app.state.live.open == 1
    deadline = time.monotonic() + 20
    while platform.app.state.live.open and time.monotonic() < deadline:
        time.sleep(0.05)
    assert platform.app.state.live.open == 0
