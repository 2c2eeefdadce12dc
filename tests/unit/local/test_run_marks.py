"""Tags, notes, pins and names of local runs: from the command line and in `osmosis view`."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from osmosis.engine.journal import Journal
from osmosis.local.run import mark, marks_of
from osmosis.local.viewing.library import LocalLibrary
from osmosis.local.viewing.server import ViewAccess, application
from osmosis.records.run.annotations import MarkChange
from support.command_line import run_command
from support.platform_data import rollout
from support.stored_run import stored_run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name in ("first", "second"):
        stored_run(tmp_path / ".osmosis" / "runs" / name, [rollout(0, 0, 1.0)])
    return tmp_path


def test_marks_stand_beside_the_journal_which_stays_as_it_is(runs: Path) -> None:
    folder = runs / ".osmosis" / "runs" / "first"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    done = run_command("eval", "tag", "first", "nightly", "prompt:v3", "--json", cwd=runs).json
    assert done["resource"]["tags"] == ["nightly", "prompt:v3"]
    run_command("eval", "note", "first", "the one with\nthe new prompt", cwd=runs)
    run_command("eval", "pin", "first", cwd=runs)
    done = run_command("eval", "tag", "first", "--remove", "nightly", cwd=runs)
    assert (done.code, "tags: prompt:v3; pinned; note: the one with" in done.out) == (0, True)
    assert {name: (folder / name).read_bytes() for name in before} == before
    run_command("eval", "pin", "first", "--undo", cwd=runs)
    assert not marks_of(folder).pinned


def test_a_run_is_renamed_unless_it_goes_on_or_the_name_is_taken(runs: Path) -> None:
    there = runs / ".osmosis" / "runs"
    taken = run_command("eval", "rename", "first", "second", "--json", cwd=runs)
    assert (taken.code, taken.error["code"]) == (1, "CONFLICT")
    journal = Journal(there / "first")
    journal.lock()
    going = run_command("eval", "rename", "first", "third", "--json", cwd=runs)
    assert (going.code, (there / "first").is_dir()) == (1, True)
    journal.close()
    assert run_command("eval", "rename", "first", "third", cwd=runs).code == 0
    assert (there / "third" / "rollouts.jsonl").is_file()
    assert run_command("eval", "rename", "third", "../out", cwd=runs).code == 2
    assert run_command("eval", "show", "third", "0", cwd=runs).code == 0


def test_bad_tags_are_refused_and_a_broken_file_counts_as_none(runs: Path) -> None:
    for words in (
        ["eval", "tag", "first", "two words"],
        ["eval", "tag", "first"],
        ["eval", "note", "first", "x" * 5000],
    ):
        assert run_command(*words, cwd=runs).code == 2
    folder = runs / ".osmosis" / "runs" / "first"
    (folder / "marks.json").write_text("{")
    assert marks_of(folder).tags == []
    assert mark(folder, MarkChange(add_tags=["a"])) == folder
    assert marks_of(folder).tags == ["a"]


async def test_marks_are_changed_in_the_browser(runs: Path, tmp_path: Path) -> None:
    access = ViewAccess(4321)
    transport = httpx.ASGITransport(application(LocalLibrary([runs], tmp_path / "cache", "ada"), access))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:4321") as browser:
        browser.cookies.set(access.cookie, access.session)
        form = {"csrf": access.csrf, "name": "renamed", "tags": "nightly a/b", "note": "hm", "pinned": "true"}
        refused = await browser.post("/runs/first/marks", data={**form, "csrf": "guessed"})
        assert refused.status_code == 403
        sent = await browser.post("/runs/first/marks", data=form)
        assert (sent.status_code, sent.headers["location"]) == (303, "/runs/renamed")
        listed = (await browser.get("/")).text
        assert listed.index(">renamed</a>") < listed.index(">second</a>"), "pinned runs stand first"
        only = (await browser.get("/index.json?tag=a/b")).json()["found"]
        assert [card["name"] for card in only] == ["renamed"]
        assert (await browser.post("/runs/second/marks", data={**form, "tags": "a$"})).status_code == 400
