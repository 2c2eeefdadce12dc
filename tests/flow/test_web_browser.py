"""The platform's pages in a real browser: live figures, content security policy, small screens, accessibility."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from osmosis.platform import tables
from osmosis.platform.runs import lifecycle
from osmosis.platform.training import service as training
from osmosis.records.run.job import MetricPoint
from osmosis.records.run.status import RunStatus
from support.browser import Visit, expect, running_chromium
from support.page_checks import axe_rules, findings
from support.platform_app import RunningPlatform, running_platform
from support.platform_data import add_rollouts, add_run, report, rollout, timeout

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    with running_platform(tmp_path_factory.mktemp("browser") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with running_chromium() as browser:
        yield browser


@pytest.fixture
def visit(request: pytest.FixtureRequest, chromium: Any, platform: RunningPlatform) -> Iterator[Visit]:
    context = chromium.new_context(**getattr(request, "param", {}))
    made = Visit(context, platform.url)
    made.log_in(platform.token)
    yield made
    context.close()


def test_figures_follow_a_run_without_a_reload(visit: Visit, platform: RunningPlatform) -> None:
    run_id = add_run(platform.parts, platform.workspace_id, "live", "running", report=report(completed=1).to_dict())
    visit.page.goto(f"{platform.url}/runs/{run_id}", wait_until="domcontentloaded")
    visit.page.evaluate("window.sameDocument = true")
    state = visit.page.locator(".state")
    expect(state).to_contain_text("0 of 30 rollouts")
    add_rollouts(platform.parts, run_id, [rollout(0, 0), rollout(0, 1)])
    expect(state).to_contain_text("2 of 30 rollouts", timeout=60_000)
    expect(visit.page.get_by_role("button", name="Stop")).to_be_visible()
    with platform.parts.db.write() as session:
        lifecycle.switch_status(session, session.get_one(tables.Run, run_id), RunStatus.FINISHED)
    expect(state).to_contain_text("finished", timeout=60_000)
    expect(visit.page.get_by_role("button", name="Retry failed rollouts")).to_be_visible(timeout=60_000)
    expect(visit.page.get_by_role("button", name="Stop")).to_have_count(0)
    assert visit.page.evaluate("window.sameDocument") is True
    assert visit.complaints == []


@pytest.fixture(scope="module")
def every_page(platform: RunningPlatform) -> list[str]:
    """Return the addresses of all pages, with something on each: also what must not run, and what failed."""
    parts, workspace = platform.parts, platform.workspace_id
    runs = [add_run(parts, workspace, name) for name in ("first", "second")]
    for number, run_id in enumerate(runs):
        made = [rollout(row, 0, float(row % 2 > number)) for row in range(12)]
        made[1].messages.append({"role": "assistant", "content": "<img src=x onerror=alert(1)>"})
        made[2] = rollout(2, 0, failure=timeout())
        add_rollouts(parts, run_id, made)
    failed = add_run(parts, workspace, "broken", "failed", failure=timeout().to_dict(), kind="training")
    trained = add_run(parts, workspace, "trained", kind="training")
    with parts.db.write() as session:
        for run_id in (failed, trained):
            points = [MetricPoint(key=key, step=step, value=step) for key in ("train/lr", "x") for step in range(5)]
            training.store(session, run_id, [*points, MetricPoint(key="rollout/forks", step=1, value=0)])
        dataset = tables.Dataset(
            workspace_id=workspace, name="sums", format="jsonl", size=120, status="uploaded", row_count=2
        )
        model = tables.BaseModel(workspace_id=workspace, name="tiny", status="ready", files=[])
        session.add_all([dataset, model])
        session.flush()
        below = [f"/datasets/{dataset.id}", f"/models/{model.id}"]
    first, second = runs
    of_run = (
        "",
        "/rollouts",
        "/rollouts?by=rollout&col=prompt",
        "/rollouts/1/0",
        "/rollouts/2/0",
        "/config",
        "/logs",
        "/share",
    )
    of_workspace = ("submit", "datasets", "models", "repository", "production", "secrets", "members", "audit")
    return [
        "/",
        *(f"/runs/{first}{path}" for path in of_run),
        f"/runs/{failed}",
        f"/compare?run={first}&run={second}",
        f"/compare?run={failed}&run={trained}&smooth=some",
        f"/compare?run={first}&run={second}&row=1&attempt=0",
        *("/history", "/decisions"),
        *(f"/demo/{page}" for page in of_workspace),
        *below,
        *("/tokens", "/workers", "/users", "/audit", "/device"),
    ]


SMALL_AND_DARK = {"color_scheme": "dark", "viewport": {"width": 390, "height": 800}}


@pytest.mark.parametrize("visit", [{}, SMALL_AND_DARK], indirect=True)
def test_no_page_has_a_serious_finding_scrolls_sideways_or_breaks_the_policy(
    visit: Visit, platform: RunningPlatform, every_page: list[str]
) -> None:
    pytest.importorskip("axe_playwright_python", reason="the rules of axe are not installed")
    rules, found = axe_rules(), {}
    for path in every_page:
        assert visit.page.goto(platform.url + path).status == 200, path
        found[path] = findings(visit.page, rules)
    assert {path: wrong for path, wrong in found.items() if wrong} == {}
    assert visit.complaints == []


@pytest.mark.parametrize("visit", [{"viewport": {"width": 390, "height": 844}}], indirect=True)
def test_what_a_button_opens_is_whole_on_a_phone(visit: Visit, platform: RunningPlatform) -> None:
    run_id = add_run(platform.parts, platform.workspace_id, "menus")
    add_rollouts(platform.parts, run_id, [rollout(0, 0)])
    visit.page.goto(f"{platform.url}/demo/secrets")
    visit.page.get_by_label("Name").fill("OPENAI_API_KEY")
    visit.page.get_by_label("Value").fill("a value")
    visit.page.get_by_role("button", name="Set").click()
    for path, summary in ((f"/runs/{run_id}", "Tags and note"), (f"/runs/{run_id}", "Delete"),
                          (f"/runs/{run_id}/rollouts", "Columns"), ("/demo/secrets", "Delete")):  # fmt: skip
        visit.page.goto(platform.url + path)
        visit.page.locator("main summary", has_text=summary).click()
        opened = visit.page.locator("details[open] > .panel")
        opened.locator("button, input").last.click(trial=True)
        box = opened.bounding_box()
        assert box["x"] >= 0, (path, summary)
        assert box["x"] + box["width"] <= 390, (path, summary)
    assert visit.complaints == []


def test_a_file_is_uploaded_through_the_form(visit: Visit, platform: RunningPlatform, tmp_path: Path) -> None:
    file = tmp_path / "products.jsonl"
    rows = [{"user_prompt": f"What is {a} * 3?", "ground_truth": str(a * 3)} for a in range(20)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    visit.page.goto(f"{platform.url}/demo/datasets")
    visit.page.get_by_label("File").set_input_files(file)
    visit.page.get_by_role("button", name="Upload").click()
    visit.page.wait_for_url("**/datasets/*", timeout=60_000)
    expect(visit.page.get_by_role("heading", level=1)).to_contain_text("products")
    with platform.parts.db.read() as session:
        stored = session.query(tables.Dataset).filter_by(name="products").one()
        assert (stored.status, stored.size) != ("pending", 0)
        assert stored.size == file.stat().st_size
    assert visit.complaints == []


@pytest.mark.parametrize("visit", [{"java_script_enabled": False}], indirect=True)
def test_everything_works_without_scripts(visit: Visit, platform: RunningPlatform) -> None:
    run_id = add_run(platform.parts, platform.workspace_id, "plain", "pending")
    visit.page.goto(f"{platform.url}/?q=plain")
    visit.page.get_by_role("link", name="plain").click()
    visit.page.get_by_role("button", name="Stop").click()
    expect(visit.page.locator(".state")).to_contain_text("stopped")
    visit.page.get_by_role("link", name="Log", exact=True).click()
    expect(visit.page.get_by_role("heading", name="plain")).to_be_visible()
    assert run_id in visit.page.url


def test_the_keyboard_reaches_the_content_first(visit: Visit, platform: RunningPlatform) -> None:
    visit.page.goto(platform.url)
    visit.page.keyboard.press("Tab")
    expect(visit.page.get_by_role("link", name="Skip to content")).to_be_focused()
    visit.page.keyboard.press("Enter")
    visit.page.keyboard.press("Tab")
    expect(visit.page.get_by_role("link", name="Decisions")).to_be_focused()
    visit.page.keyboard.press("Tab")
    expect(visit.page.get_by_role("link", name="Start a run")).to_be_focused()
    visit.page.keyboard.press("Tab")
    expect(visit.page.get_by_label("Search")).to_be_focused()
