"""The comparison page has the verdict of `metrics.compare` and links to both conversations."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from osmosis.errors import NotFound, UsageError
from osmosis.metrics.compare import compare
from osmosis.records.run.annotations import Marks
from osmosis.records.run.rollout import Rollout
from osmosis.records.run.status import RunStatus
from osmosis.viewer import routes
from osmosis.viewer.compare_page import code_page
from osmosis.viewer.page import Document, Page, QueryParams
from osmosis.viewer.run_source import CodePair, CodeVersion, Fact, Origin, RunSettings, RunState
from support.kept_run import KeptRun, Shelf, html_of
from support.platform_data import report, rollout, timeout


def run_of(name: str, values: dict[int, float], **setting: object) -> KeptRun:
    state = RunState(f"/runs/{name}", name, "eval", RunStatus.FINISHED, "openai/x", completed=9, total=9)
    made: list[Rollout] = [rollout(row, 0, value) for row, value in values.items()]
    settings = RunSettings({"sampling": setting}, "As run", ())
    return KeptRun(state, report(), made, Origin((Fact("Commit", name * 2),), (), code=CodeVersion(name * 2)), settings)


@pytest.fixture
def shelf() -> Shelf:
    before = {row: float(row % 2) for row in range(20)}
    return Shelf(
        {
            "a": run_of("a", before, temperature=0.5, top_p=1.0),
            "b": run_of("b", {**before, **dict.fromkeys(range(0, 18, 2), 1.0), 1: 0.0}, temperature=1.0, top_p=1.0),
            "c": run_of("c", before, temperature=0.5, top_p=1.0),
        }
    )


def record(shelf: Shelf, query: str) -> Any:
    found = routes.build_page(shelf, "compare.json", asked(query))
    assert isinstance(found, Document)
    return json.loads(b"".join(found.content))


def page(shelf: Shelf, query: str) -> str:
    found = routes.build_page(shelf, "compare", asked(query))
    assert isinstance(found, Page)
    return html_of(found)


def asked(query: str) -> QueryParams:
    return QueryParams((name, value) for name, _, value in (pair.partition("=") for pair in query.split("&")))


def test_the_verdict_is_that_of_the_paired_test(shelf: Shelf) -> None:
    expected = compare(shelf.kept["a"].kept, shelf.kept["b"].kept, threshold=1.0)
    found = record(shelf, "run=a&run=b")["found"]
    side = found["sides"][1]["comparison"]
    assert side["p_value"] == expected.p_value
    assert (side["gained"], side["lost"], side["pairs"]) == (9, 1, 20)
    assert found["conclusion"] == expected.verdict == "better"
    html = page(shelf, "run=a&run=b")
    assert "b against a: better" in html
    assert "Mean of A" not in html, "the table above has it"
    assert ">+9 −1<" in html


def test_the_older_run_is_the_baseline_unless_another_is_marked_or_chosen(shelf: Shelf) -> None:
    for day, id_ in enumerate("abc"):
        shelf.kept[id_].run = replace(shelf.kept[id_].run, created_at=f"2026-11-0{day + 1}T10:00:00+00:00")

    def order(query: str) -> str:
        return "".join(side["id"] for side in record(shelf, query)["found"]["sides"])

    assert order("run=b&run=a") == "ab", "the list that they are ticked in begins with the newest"
    html = page(shelf, "run=b&run=a")
    assert ">0/0</a>" in html, "as the command line writes an attempt"
    swap = re.search(r'href="\?([^"]*)">Swap', html)
    assert swap is not None
    assert order(swap[1].replace("&amp;", "&")) == "ba"
    shelf.kept["b"].marks = Marks(tags=["baseline"])
    assert order("run=c&run=b&run=a") == "bac"
    assert order("run=c&run=b&run=a&baseline=c") == "cab"
    back = code_page(CodePair(("b", "a"), (None, None)), asked("run=b&run=a")).values["back"]
    assert order(str(back).partition("?")[2]) == "ba"


def test_a_comparison_waits_for_the_index(shelf: Shelf) -> None:
    shelf.kept["b"].unread = 1
    html = page(shelf, "run=a&run=b")
    assert "The rollouts of b are still being indexed" in html
    assert 'hx-get="/compare?run=a&amp;run=b"' in html


def test_several_runs_share_one_error_rate(shelf: Shelf) -> None:
    found = record(shelf, "run=a&run=c&run=b&with=b")["found"]
    assert [side["verdict"] for side in found["sides"]] == ["", "no clear difference", "better"]
    assert found["shown"] == "b"
    assert record(shelf, "run=a&run=c&run=b")["found"]["shown"] == "c"


def test_changes_link_to_both_conversations_lost_ones_first(shelf: Shelf) -> None:
    found = record(shelf, "run=a&run=b")["found"]
    assert [(line["kind"], line["flip"]["row_index"]) for line in found["flips"][:2]] == [("lost", 1), ("gained", 0)]
    assert record(shelf, "run=a&run=b&flips=lost")["found"]["total"] == 1
    assert found["flips"][0]["prompt"] == "What is 3 times 3?"
    assert [answer.split()[-1] for answer in found["flips"][0]["answers"]] == ["9", "0"]
    url = found["flips"][1]["url"]
    assert url == "/compare?baseline=a&run=a&run=b&row_a=0&row=0&attempt=0"
    html = page(shelf, url.partition("?")[2])
    assert html.count("What is 2 times 3?") == 4, "each with its preview"
    assert re.search(r'data-key="k" href="/compare\?baseline=a&amp;run=a&amp;run=b&amp;row_a=1&amp;row=1', html)
    assert re.search(r'data-key="j" href="/compare\?baseline=a&amp;run=a&amp;run=b&amp;row_a=2&amp;row=2', html)
    assert 'data-key="k"' not in page(shelf, "run=a&run=b&row=1&attempt=0"), "the first one"


def test_what_else_differs_is_said(shelf: Shelf) -> None:
    changed = record(shelf, "run=a&run=b")["found"]["changed"]
    assert [(one["name"], one["before"], one["after"]) for one in changed] == [
        ("Commit", "aa", "bb"), ("sampling.temperature", "0.5", "1.0"),
    ]  # fmt: skip
    assert "git diff aa bb" in page(shelf, "run=a&run=b")
    for one in ("a", "b"):
        shelf.kept[one].made_of = replace(shelf.kept[one].made_of, web="https://github.com/ada/agents")
    assert 'href="https://github.com/ada/agents/compare/aa...bb"' in page(shelf, "run=a&run=b")
    assert "/compare/aa...cc" not in page(shelf, "run=a&run=c"), "of another repository"
    shelf.kept["again"] = shelf.kept["a"]
    assert "git diff" not in page(shelf, "run=a&run=again")


def test_dots_hold_every_row_once(shelf: Shelf) -> None:
    spots = record(shelf, "run=a&run=b")["found"]["spots"]
    assert sum(int(re.match(r"[\d,]+", spot["title"])[0]) for spot in spots) == 20  # type: ignore[index]
    assert {(spot["kind"], spot["x"], spot["y"]) for spot in spots} == {
        ("same", 0.0, 100.0), ("same", 100.0, 0.0), ("gained", 0.0, 0.0), ("lost", 100.0, 100.0),
    }  # fmt: skip


def test_runs_that_cannot_be_compared_say_why(shelf: Shelf) -> None:
    shelf.kept["empty"] = run_of("empty", {})
    shelf.kept["broken"] = run_of("broken", {0: 1.0})
    shelf.kept["broken"].kept = [rollout(0, 0, failure=timeout())]
    found = record(shelf, "run=a&run=empty&run=broken&run=b")["found"]
    assert "no rows in common" in found["sides"][1]["problem"] or "no scores" in found["sides"][1]["problem"]
    assert found["sides"][2]["problem"]
    assert found["shown"] == "b"
    assert "no scores in common" in page(shelf, "run=a&run=empty")


def test_one_run_is_no_comparison(shelf: Shelf) -> None:
    with pytest.raises(UsageError, match="needs two runs"):
        page(shelf, "run=a")
    with pytest.raises(UsageError):
        page(shelf, "run=a&run=a")
    with pytest.raises(NotFound):
        page(shelf, "run=a&run=none")
