"""Local runs as pages: access, runs that are found, and a run in progress."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from osmosis.datasets.scan import row_hash
from osmosis.engine.journal import Journal
from osmosis.local.viewing.library import LocalLibrary
from osmosis.local.viewing.server import ViewAccess, application
from osmosis.records.run.annotations import Annotation
from support.platform_data import rollout
from support.stored_run import stored_run

PORT = 4321
HERE = f"http://127.0.0.1:{PORT}"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    data = [{"user_prompt": f"q{row}", "ground_truth": str(row)} for row in range(2)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in data))
    made = [rollout(row, attempt, float(row == attempt)) for row in range(2) for attempt in range(2)]
    for one in made:
        one.hashes["row"] = row_hash(data[one.row_index])
    stored_run(tmp_path / "first", made)
    stored_run(tmp_path / "second", [one.model_copy() for one in made[:3]])
    return tmp_path


@pytest.fixture
def open_page(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., httpx.AsyncClient]]:
    cache = tmp_path_factory.mktemp("cache")

    def made(*, logged_in: bool = True) -> httpx.AsyncClient:
        access = ViewAccess(PORT)
        transport = httpx.ASGITransport(application(LocalLibrary([runs], cache, "ada"), access))
        client = httpx.AsyncClient(transport=transport, base_url=HERE)
        client.headers["x-link"] = access.link()
        if logged_in:
            client.cookies.set(access.cookie, access.session)
        return client

    yield made
    assert not list(runs.glob("*/*.db*")), "an index never stands in a run"


async def test_the_link_works_once_and_leaves_a_cookie(open_page: Callable[..., httpx.AsyncClient]) -> None:
    async with open_page(logged_in=False) as browser:
        link = browser.headers.pop("x-link")
        assert (await browser.get("/")).status_code == 403
        assert (await browser.get(HERE + "/?token=wrong")).status_code == 403
        entered = await browser.get(link)
        assert (entered.status_code, entered.headers["location"]) == (303, "/")
        cookie = entered.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert (await browser.get("/")).status_code == 200
        browser.cookies.clear()
        assert (await browser.get(link)).status_code == 403, "it was used"
        assert (await browser.get("/static/osmosis.css")).status_code == 200, "the page that says so has its style"


async def test_other_hosts_and_other_sites_are_refused(open_page: Callable[..., httpx.AsyncClient]) -> None:
    async with open_page() as browser:
        assert (await browser.get("/", headers={"host": "evil.test"})).status_code == 421
        assert (await browser.get("/", headers={"origin": "https://evil.test"})).status_code == 403
        assert (await browser.get("/", headers={"origin": HERE})).status_code == 200
        assert (await browser.post("/")).status_code in (404, 405)


async def test_every_page_of_a_run_is_there_and_keeps_the_policy(open_page: Callable[..., httpx.AsyncClient]) -> None:
    async with open_page() as browser:
        for path in ("/", "/runs/first", "/runs/first/rollouts", "/runs/first/rollouts/0/1", "/runs/first/config",
                     "/index.json", "/runs/first.json", "/runs/first/rollouts/export.csv",
                     "/static/keys.js"):  # fmt: skip
            answer = await browser.get(path)
            assert answer.status_code == 200, path
            assert "static" in path or "default-src 'self'" in answer.headers["content-security-policy"], path
        for path in ("/nope", "/runs/none", "/runs/first/odd", "/runs/first/rollouts/9/9", "/runs/first/logs"):
            missing = await browser.get(path)
            assert (missing.status_code, "<h1>Not found</h1>" in missing.text) == (404, True), path


async def test_the_list_says_how_each_run_stands(runs: Path, open_page: Callable[..., httpx.AsyncClient]) -> None:
    (runs / "broken").mkdir()
    (runs / "broken" / "run.json").write_text("{")
    async with open_page() as browser:
        found = {card["name"]: card for card in (await browser.get("/index.json")).json()["found"]}
        assert found["first"]["mean"] == 0.5
        assert (found["first"]["state"]["status"], found["second"]["state"]["status"]) == ("finished", "stopped")
        assert found["second"]["state"]["completed"] == 3
        assert "damaged" in found["broken"]["problem"]
        page = (await browser.get("/", params={"q": "calculator first"})).text
        assert "/runs/first" in page
        assert "/runs/second" not in page


async def test_the_files_of_a_rollout_are_on_its_page(runs: Path, open_page: Callable[..., httpx.AsyncClient]) -> None:
    folder = runs / "first" / "artifacts" / "r-0-1" / "artifacts"
    (folder / "plots").mkdir(parents=True)
    (folder / "plots" / "a.png").write_bytes(b"\x89PNG")
    (folder / "notes.txt").write_text("<b>seen</b>")
    (folder / "large.txt").write_text("x" * 30_000)
    (folder / "link.txt").symlink_to("/etc/passwd")
    async with open_page() as browser:
        page = (await browser.get("/runs/first/rollouts/0/1")).text
        assert 'src="data:image/png;base64,iVBORw==" alt="plots/a.png"' in page
        assert "&lt;b&gt;seen&lt;/b&gt;</pre>" in page
        assert "<strong>large.txt</strong>" in page
        assert "xxx" not in page
        assert "link.txt" not in page
        assert 'id="artifacts"' not in (await browser.get("/runs/first/rollouts/0/0")).text


async def test_the_row_of_the_dataset_is_shown_until_it_is_edited(
    runs: Path, open_page: Callable[..., httpx.AsyncClient]
) -> None:
    async with open_page() as browser:
        assert (await browser.get("/runs/first/rollouts/1/0.json")).json()["found"]["row"]["ground_truth"] == "1"


async def test_a_run_that_goes_on_is_followed(runs: Path, open_page: Callable[..., httpx.AsyncClient]) -> None:
    journal = stored_run(runs / "going", [rollout(0, 0)], ended=False)
    async with open_page() as browser:

        async def seen() -> tuple[str, int, int]:
            run = (await browser.get("/runs/going.json")).json()["run"]
            table = (await browser.get("/runs/going/rollouts.json", params={"by": "rollout"})).json()["found"]
            return run["status"], run["completed"], table["total"]

        assert await seen() == ("running", 1, 1)
        pulse = {"stages": {"agent": 2, "score": 1}, "longest": [["row 1 attempt 0", "agent", 7.0]]}
        journal.pulse_path.write_text(json.dumps(pulse))
        page = (await browser.get("/runs/going")).text
        assert "3 in flight: 2 agent, 1 score" in page
        assert "row 1 attempt 0 in agent for 7.0 s" in page
        journal.append(rollout(0, 1))
        with journal.rollouts_path.open("ab") as torn:
            torn.write(b'{"rollout_id": "half')
        assert await seen() == ("running", 2, 2)
        journal.close()
        run = json.loads(journal.run_path.read_text())
        run["sessions"][-1]["pid"] = _ended_pid()
        journal.run_path.write_text(json.dumps(run))
        assert (await seen())[0] == "stopped", "its process is gone"


async def test_a_journal_that_was_rewritten_is_indexed_anew(
    runs: Path, open_page: Callable[..., httpx.AsyncClient]
) -> None:
    async with open_page() as browser:
        assert (await browser.get("/runs/first/rollouts.json")).json()["found"]["rollouts"] == 4
        with Journal(runs / "first").rewriting() as out:
            out.write(rollout(0, 0).to_line())
        assert (await browser.get("/runs/first/rollouts.json")).json()["found"]["rollouts"] == 1
        assert (await browser.get("/runs/first/rollouts/0/0.json")).json()["record"]["rollout_id"] == "r-0-0"


def test_runs_of_one_name_in_two_folders_have_two_addresses(
    runs: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    stored_run(other / ".osmosis" / "runs" / "first", [rollout(0, 0)], rows=1)
    library = LocalLibrary([runs, other, runs / "first"], tmp_path_factory.mktemp("cache"))
    assert {card.id for card in library.cards()} == {"first", "second", "first~2"}
    assert library.only_run() is None
    assert LocalLibrary([runs / "second"], runs).only_run() == "second"


def _ended_pid() -> int:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return pid


async def test_a_label_needs_a_form_of_this_server(runs: Path, open_page: Callable[..., httpx.AsyncClient]) -> None:
    address = "/runs/first/rollouts/1/0/annotate?outcome=not-passed"
    async with open_page() as browser:
        page = (await browser.get("/runs/first/rollouts/1/0")).text
        csrf = page.partition('name="csrf" value="')[2].partition('"')[0]
        assert (await browser.post(address, data={"label": "wrong"})).status_code == 403
        form = {"label": "wrong", "csrf": csrf}
        assert (await browser.post(address, data=form, headers={"origin": "https://evil.test"})).status_code == 403
        assert (await browser.post(address, data={**form, "score": "x"})).status_code == 400
        assert (await browser.post(address, data={**form, "comment": "x" * 70_000})).status_code == 400
        assert not (runs / "first" / "annotations.jsonl").exists()
        kept = await browser.post(address, data=form)
        assert kept.headers["location"] == "/runs/first/rollouts/1/0?outcome=not-passed#judgement"
        (line,) = (runs / "first" / "annotations.jsonl").read_text().splitlines()
        assert Annotation.model_validate_json(line).author == "ada"
        labelled = (await browser.get("/runs/first/rollouts.json", params={"label": "wrong", "by": "rollout"})).json()
        assert [one["label"] for one in labelled["found"]["lines"]] == ["1/0"]
        none = (await browser.get("/runs/first/rollouts.json", params={"label": "-", "by": "rollout"})).json()
        assert none["found"]["total"] == 3
