"""`osmosis view` in a real browser: table, search, labels, comparison, live run, export; policy and accessibility."""

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from osmosis.datasets.scan import row_hash
from osmosis.records.run.annotations import Annotation
from osmosis.records.run.rollout import Rollout
from support.browser import Visit, expect, running_chromium
from support.page_checks import axe_rules, findings
from support.platform_data import rollout, timeout
from support.stored_run import stored_run

pytest.importorskip("axe_playwright_python", reason="the rules of axe are not installed")
ROWS = 60

pytestmark = pytest.mark.browser


def made(right: set[int]) -> list[Rollout]:
    """Two attempts at each row: the first passes for these rows, the second for all but every fifth."""
    found = []
    for row in range(ROWS):
        for attempt in range(2):
            passed = row in right if attempt == 0 else row % 5 != 0
            one = rollout(row, attempt, float(passed))
            one.hashes["row"] = row_hash(data_of(row))
            found.append(one)
    found[7] = rollout(3, 1, failure=timeout())
    return found


def data_of(row: int) -> dict[str, object]:
    return {
        "user_prompt": f"What is {row + 2} times 3?",
        "ground_truth": str((row + 2) * 3),
        "level": f"level {row % 3}",
    }


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "data.jsonl").write_text("".join(json.dumps(data_of(row)) + "\n" for row in range(ROWS)))
    stored_run(folder / "before", made(set(range(10))), rows=ROWS)
    after = made(set(range(40)))
    after[2].messages[4:4] = [{"role": "user", "content": f"And the {number}th time?"} for number in range(40)]
    after[0].messages[-1]["content"] = (
        "**The product** is `6`.\n\n| a | b |\n|---|---|\n| 2 | 3 |\n\n<img src=x onerror=alert(1)>"
    )
    stored_run(folder / "after", after, rows=ROWS)
    return folder


def command(folder: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "osmosis", "view", str(folder), *words, "--json"]


@pytest.fixture(scope="module")
def link(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(runs), "OSMOSIS_CACHE_DIR": str(tmp_path_factory.mktemp("cache")),
               "USER": "ada", "LOGNAME": "ada"}  # fmt: skip
    server = subprocess.Popen(command(runs, "--no-open"), stdout=subprocess.PIPE, text=True, env=environ, cwd=runs)
    yield json.loads(server.stdout.readline())["data"]["url"]
    server.terminate()
    assert server.wait(10) == 0


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with running_chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def state(chromium: Any, link: str) -> Any:
    """Return the cookie that the link leaves."""
    context = chromium.new_context()
    context.new_page().goto(link)
    found = context.storage_state()
    context.close()
    return found


@pytest.fixture
def visit(request: pytest.FixtureRequest, chromium: Any, link: str, state: Any) -> Iterator[Visit]:
    context = chromium.new_context(storage_state=state, **getattr(request, "param", {}))
    found = Visit(context, link.partition("/?")[0])
    yield found
    assert found.complaints == []
    context.close()


def test_rows_are_found_and_read_one_after_the_other(visit: Visit) -> None:
    page = visit.go("/")
    page.get_by_role("link", name="after").click()
    page.get_by_role("link", name="Rollouts", exact=True).click()
    expect(page.locator("tbody tr")).to_have_count(50)
    page.keyboard.press("/")
    page.keyboard.type('"times 4" -timeout')
    page.keyboard.press("Enter")
    expect(page.get_by_text("rollouts match")).to_contain_text("59 rows")
    page.get_by_label("Outcome").select_option("not-passed")
    page.locator("summary", has_text="Columns").click()
    page.get_by_label("row level").check()
    page.get_by_role("button", name="Show").click()
    expect(page.locator("thead")).to_contain_text("level")
    expect(page.locator("tbody tr")).to_have_count(12)
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Row 5, attempt 1")
    page.keyboard.press("j")
    expect(page.get_by_role("heading", level=1)).to_have_text("Row 10, attempt 1")
    page.keyboard.press("k")
    expect(page.get_by_role("heading", level=1)).to_have_text("Row 5, attempt 1")
    page.keyboard.press("f")
    page.keyboard.press("u")
    expect(page.get_by_label("Search")).to_have_value('"times 4" -timeout')


def test_a_rollout_is_whole_and_its_messages_have_addresses(visit: Visit) -> None:
    page = visit.go("/runs/after/rollouts/0/0#m4")
    expect(page.locator("#m4")).to_be_in_viewport()
    expect(page.locator("#m4 strong", has_text="The product")).to_be_visible()
    expect(page.locator("#m4 table")).to_be_visible()
    expect(page.locator("#m4 .said img")).to_have_count(0)
    expect(page.locator("#m2 .result")).to_contain_text('"result": 6')
    expect(page.locator(".compared")).to_contain_text("Expected")
    page.evaluate("document.activeElement.blur()")
    for _ in range(3):
        page.keyboard.press("n")
    assert page.evaluate("document.activeElement.id") == "m2"
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("next failure")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_long_conversation_is_found_through_and_read_beside_another(visit: Visit) -> None:
    page = visit.go("/runs/after/rollouts/1/0")
    outline = page.get_by_role("navigation", name="Messages")
    outline.get_by_role("link").nth(30).click()
    expect(page.locator("#m31 .pre")).to_be_visible()
    expect(outline.locator("a[aria-current]")).to_have_count(1)
    page.get_by_label("Find").fill("3th TIME")
    expect(page.locator("#find-count")).to_have_text("4 in 4 messages")
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    expect(page.locator("#find-count")).to_have_text("2 of 4")
    expect(page.locator("#m17")).to_be_in_viewport()
    page.get_by_label("attempt 1 beside this one").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Row 1")
    expect(page.locator(".pair .turn.same")).to_have_count(2)
    page.get_by_role("link", name="Where they part").click()
    expect(page.locator("#a1 .pre")).to_be_visible()


def test_a_label_is_kept_beside_the_journal(visit: Visit, runs: Path) -> None:
    before = (runs / "after" / "rollouts.jsonl").read_bytes()
    page = visit.go("/runs/after/rollouts/1/1")
    page.keyboard.press("l")
    page.keyboard.type("wrong")
    page.get_by_label("Comment").fill("the tool was not needed <b>")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#judgement")).to_contain_text("the tool was not needed <b>")
    page.goto(f"{visit.url}/runs/after/rollouts?label=wrong")
    expect(page.locator("tbody tr")).to_have_count(1)
    (line,) = (runs / "after" / "annotations.jsonl").read_text().splitlines()
    said = Annotation.model_validate_json(line)
    assert (said.place, said.label, said.author, said.rollout_id) == ((0, 1, 1), "wrong", "ada", "r-1-1")
    assert (runs / "after" / "rollouts.jsonl").read_bytes() == before
    page.goto(f"{visit.url}/runs/after/rollouts/1/1")
    page.get_by_label("Label", exact=True).fill("")
    page.get_by_label("Comment").fill("")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#judgement")).not_to_contain_text("ada")


def test_two_runs_are_compared_and_a_change_is_read(visit: Visit) -> None:
    page = visit.go("/")
    page.get_by_label("compare before").check()
    page.get_by_label("compare after").check()
    page.get_by_role("button", name="Compare the chosen runs").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Compare 2 runs")
    expect(page.locator(".plot circle").first).to_be_visible()
    page.locator("#flips tbody a").first.click()
    expect(page.locator(".pair > section")).to_have_count(2)
    first = page.url
    page.keyboard.press("j")
    page.wait_for_url(lambda url: url != first)


def test_a_run_that_goes_on_is_followed_without_a_reload(visit: Visit, runs: Path) -> None:
    journal = stored_run(runs / "going", made(set())[:2], rows=ROWS, ended=False)
    run = json.loads(journal.run_path.read_text())
    try:
        page = visit.go("/runs/going")
        page.evaluate("window.sameDocument = true")
        expect(page.locator(".state")).to_contain_text(f"2 of {ROWS * 2} rollouts")
        journal.append_all(made(set())[2:6])
        expect(page.locator(".state")).to_contain_text(f"6 of {ROWS * 2} rollouts", timeout=60_000)
        assert page.evaluate("window.sameDocument") is True
        page.get_by_role("link", name="Rollouts", exact=True).click()
        expect(page.locator("tbody tr")).to_have_count(3)
        journal.append_all(made(set())[8:10])
        expect(page.locator("tbody tr")).to_have_count(4, timeout=60_000)
        counted = re.findall(r"\d+", page.locator("nav[aria-label=Views]").inner_text())
        assert sum(map(int, counted)) == page.locator("tbody .dot").count() == 8, "one event has table and counts"
        assert run["sessions"]
    finally:
        journal.close()
        shutil.rmtree(runs / "going")
        visit.page.goto("about:blank")


@pytest.mark.parametrize("status", [None, 503])
def test_a_stream_whose_first_request_fails_is_asked_for_again(visit: Visit, runs: Path, status: int | None) -> None:
    journal = stored_run(runs / "going", made(set())[:2], rows=ROWS, ended=False)
    failed: list[str] = []

    def first_fails(route: Any) -> None:
        if failed:
            route.continue_()
        elif status is None:
            failed.append(route.request.url)
            route.abort()
        else:
            failed.append(route.request.url)
            route.fulfill(status=status, content_type="text/html", body="<h1>the proxy's own page</h1>")

    try:
        visit.page.route("**/events*", first_fails)
        page = visit.go("/runs/going")
        journal.append_all(made(set())[2:6])
        expect(page.locator(".state")).to_contain_text(f"6 of {ROWS * 2} rollouts", timeout=60_000)
        assert failed
        visit.complaints.clear()  # the browser's about the request that failed
    finally:
        journal.close()
        shutil.rmtree(runs / "going")
        visit.page.goto("about:blank")


def test_a_page_follows_its_run_however_late_its_scripts_come(visit: Visit, runs: Path) -> None:
    """htmx starts by itself; it ignores an extension that is not loaded by then."""
    journal = stored_run(runs / "going", made(set())[:2], rows=ROWS, ended=False)

    def late(route: Any) -> None:
        time.sleep(1)
        route.continue_()

    try:
        visit.page.route("**/hx-sse-*.js*", late)
        page = visit.go("/runs/going")
        journal.append_all(made(set())[2:6])
        expect(page.locator(".state")).to_contain_text(f"6 of {ROWS * 2} rollouts", timeout=60_000)
    finally:
        journal.close()
        shutil.rmtree(runs / "going")
        visit.page.goto("about:blank")


PAGES = ("/", "/runs/after", "/runs/after/rollouts", "/runs/after/rollouts?by=rollout&col=prompt&col=row:level",
         "/runs/after/rollouts/1/0", "/runs/after/rollouts/1/0?against=1", "/runs/after/rollouts/3/1",
         "/runs/after/config", "/compare?run=before&run=after",
         "/compare?run=before&run=after&row=12&attempt=0", "/history", "/history?row=3", "/?q=after")  # fmt: skip


SMALL_AND_DARK = {"color_scheme": "dark", "viewport": {"width": 400, "height": 800}}


@pytest.mark.parametrize("visit", [{}, SMALL_AND_DARK], indirect=True)
def test_no_page_has_a_serious_finding_or_scrolls_sideways(visit: Visit) -> None:
    rules = axe_rules()
    found = {path: wrong for path in PAGES if (wrong := findings(visit.go(path), rules))}
    assert found == {}


@pytest.mark.parametrize("visit", [{"java_script_enabled": False}], indirect=True)
def test_pages_work_without_scripts(visit: Visit) -> None:
    page = visit.go("/runs/after/rollouts")
    page.get_by_label("Search").fill('"5 times 3"')
    page.get_by_role("button", name="Show").click()
    page.locator("tbody th a").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Row 3, attempt 0")
    expect(page.locator("#m4")).to_be_visible()


def test_an_export_is_read_from_the_disk(chromium: Any, runs: Path, tmp_path: Path) -> None:
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "OSMOSIS_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        command(runs, "--export", str(tmp_path / "out")), env=environ, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["resource"]["pages"] > 2 * 2 * ROWS
    context = chromium.new_context(offline=True)
    visit = Visit(context, (tmp_path / "out").as_uri())
    page = visit.go("/index.html")
    page.get_by_role("link", name="after").click()
    page.get_by_role("link", name="Rollouts", exact=True).click()
    page.get_by_role("link", name="Next").click()
    expect(page.locator("tbody tr")).to_have_count(10)
    page.locator("tbody th a").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Row 50, attempt 0")
    page.keyboard.press("j")
    expect(page.get_by_role("heading", level=1)).to_have_text("Row 50, attempt 1")
    assert page.evaluate("getComputedStyle(document.body).margin") == "0px", "the style sheet is found"
    page.goto(visit.url + "/index.html")
    page.get_by_role("link", name="Compare these runs").click()
    page.locator("#flips tbody a").first.click()
    expect(page.locator(".pair > section")).to_have_count(2)
    assert visit.complaints == []
    context.close()
