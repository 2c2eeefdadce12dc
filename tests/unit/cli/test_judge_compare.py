"""`osmosis judge compare` and `osmosis.compare_answers`, with a judge on loopback that is fair, biased or broken."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import osmosis
from osmosis.base.jsonable import JsonObject
from osmosis.engine.rubrics.pairwise import read_verdicts
from osmosis.local.viewing.library import LocalLibrary
from osmosis.viewer.compare_page import compare_page
from osmosis.viewer.page import QueryParams
from support.command_line import CommandRun, run_command
from support.endpoint import ModelEndpoint, Reply, text_reply
from support.platform_data import rollout, timeout
from support.stored_run import stored_run
from support.waiting import until

ROWS = 24
RUBRIC = ("-r", "The longer answer is better.", "--model", "judge")
Pick = Callable[[str, str], str]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    (tmp_path / "data.jsonl").write_text("")
    for name, texts in (
        ("short", ["ok"] * ROWS),
        ("long", ["a long answer" if row < ROWS - 3 else "x" for row in range(ROWS)]),
        ("longest", ["by far the longest answer"] * ROWS),
    ):
        rollouts = [
            rollout(
                row,
                0,
                row_key=f"row-{row}",
                messages=[{"role": "user", "content": f"Question {row}?"}, {"role": "assistant", "content": text}],
                failure=timeout() if (name, row) == ("long", 0) else None,
            )
            for row, text in enumerate(texts)
        ]
        stored_run(tmp_path / ".osmosis" / "runs" / name, rollouts, rows=ROWS, attempts=1, dataset="../../data.jsonl")
    return tmp_path


def judge(pick: Pick) -> Callable[[JsonObject, int], Reply]:
    def decide(body: JsonObject, _: int) -> Reply:
        text = body["messages"][-1]["content"]
        a, b = (re.search(rf"<<<BEGIN_ANSWER_{side}>>>\n(.*?)\n<<<END", text, re.S)[1] for side in "AB")
        return text_reply(json.dumps({"winner": pick(a, b), "explanation": f"of {len(a)} and {len(b)}"}))

    return decide


def longer(a: str, b: str) -> str:
    return "A" if len(a) > len(b) else "B"


@pytest.fixture
def fair() -> Iterator[ModelEndpoint]:
    with ModelEndpoint(judge(longer)) as endpoint:
        yield endpoint


def compare(cwd: Path, url: str, *words: str) -> CommandRun:
    return run_command("judge", "compare", *RUBRIC, "--base-url", url, "--json", *words, cwd=cwd)


def test_the_better_run_wins_and_nothing_is_asked_twice(runs: Path, fair: ModelEndpoint) -> None:
    done = compare(runs, fair.url, "short", "long")
    found = done.json["data"]
    (preference,) = found["preferences"]
    assert (preference["a"], preference["b"], preference["verdict"]) == ("short", "long", "better")
    assert (preference["wins_a"], preference["ties"], preference["wins_b"], preference["rows"]) == (3, 0, 20, 23)
    assert {name: count for name, count in found["counts"].items() if count} == {"judged": 23, "unpaired": 1}
    assert found["first_interval"]["low"] < found["first"] == 0.5 < found["first_interval"]["high"]
    assert found["conclusion"].startswith("long is better than short")
    assert found["strengths"][1]["elo"] > found["strengths"][1]["interval"]["low"] > 0
    asked = [request["messages"][-1]["content"] for request in fair.requests]
    assert all("Question" in text and "longer answer" in text for text in asked)
    assert compare(runs, fair.url, "short", "long").json["data"] == found
    assert len(fair.requests) == 46
    plain = run_command("judge", "compare", "short", "long", *RUBRIC, "--base-url", fair.url, cwd=runs).out
    assert "long is better than short: 20 wins, 0 ties, 3 losses" in " ".join(plain.split())


def test_a_judge_that_prefers_the_first_is_biased_and_nobody_wins(runs: Path) -> None:
    with ModelEndpoint(judge(lambda a, b: "A")) as endpoint:
        found = compare(runs, endpoint.url, "short", "longest").json["data"]
    (preference,) = found["preferences"]
    assert (preference["verdict"], preference["ties"], preference["rate"]) == ("no clear difference", ROWS, 0.5)
    assert (found["first"], found["counts"]["changed"], found["first_interval"]["low"] > 0.8) == (1.0, ROWS, True)


def test_three_runs_are_ranked_and_the_page_shows_it(runs: Path, fair: ModelEndpoint) -> None:
    found = compare(runs, fair.url, "short", "long", "longest", "--rows", "10").json["data"]
    elo = {strength["run"]: strength["elo"] for strength in found["strengths"]}
    assert sorted(elo, key=elo.__getitem__) == ["short", "long", "longest"]
    assert [preference["rows"] for preference in found["preferences"]] == [9, 10, 9]
    library = LocalLibrary([runs], runs / "cache")
    shown = compare_page(library, QueryParams([("run", "short"), ("run", "longest")])).values["found"]
    (text,) = shown["preferences"]  # type: ignore[index]
    assert 'openai/judge by "The longer answer is better."' in text
    assert ("10 wins, 0 ties, 0 losses" in text, "14 left" in text) == (True, True)


def test_a_judge_that_fails_is_counted_and_asked_again(runs: Path) -> None:
    broken = True

    def decide(body: JsonObject, number: int) -> Reply:
        is_odd = "Question 5?" in body["messages"][-1]["content"]
        return text_reply("who knows") if broken and is_odd else judge(longer)(body, number)

    with ModelEndpoint(decide) as endpoint:
        found = compare(runs, endpoint.url, "short", "longest").json["data"]
        assert (found["counts"]["judged"], found["counts"]["failed"]) == (ROWS - 1, 1)
        assert "who knows" in found["notes"][0]
        verdicts = read_verdicts(runs / ".osmosis" / "preferences.jsonl")
        assert [v.usage.total_tokens > 0 for v in verdicts if v.first is None] == [True, True]
        broken, before = False, len(endpoint.requests)
        found = compare(runs, endpoint.url, "short", "longest").json["data"]
        assert (found["counts"]["judged"], found["counts"]["failed"], len(endpoint.requests) - before) == (ROWS, 0, 2)


def test_a_budget_ends_it_and_a_larger_one_goes_on(runs: Path, fair: ModelEndpoint) -> None:
    words = ("short", "longest", "--concurrency", "1", "--price", "1000,1000")  # a question costs 0.015 USD
    ended = compare(runs, fair.url, *words, "--max-cost", "0.1")
    found = ended.json["data"]
    assert (ended.code, found["counts"]["judged"], found["counts"]["left"]) == (1, 3, ROWS - 3)
    assert "of 0.1 USD" in found["notes"][0]
    assert found["cost_usd"] == pytest.approx(0.105)
    assert compare(runs, fair.url, *words, "--max-cost", "0.1").code == 1
    assert len(fair.requests) == 7
    assert compare(runs, fair.url, *words, "--max-cost", "1").json["data"]["counts"]["left"] == 0
    assert len(fair.requests) == 2 * ROWS
    none = compare(runs, fair.url, "short", "long", "--price", "1,1", "--max-cost", "0")
    assert (none.code, "0 USD spent" in none.error["message"]) == (1, True)
    asks = compare(runs, fair.url, "short", "long", "--price", "1,1")
    assert (asks.error["code"], "--yes" in asks.error["details"]["hint"]) == ("INTERACTIVE_REQUIRED", True)


def test_what_cannot_be_compared_says_so(runs: Path, fair: ModelEndpoint) -> None:
    other = [rollout(90, 0, row_key="another")]
    stored_run(runs / ".osmosis" / "runs" / "elsewhere", other, rows=1, dataset="../../data.jsonl")
    (runs / "judge.yaml").write_text(
        "rubrics:\n- {id: kind, rubric: Be kind., model_info: {provider: xai, model: g}}\n"
    )
    for words, message in (
        (("short", "nowhere"), "there is no run 'nowhere'"),
        (("short", "short"), "two different runs"),
        (("short", "elsewhere"), "short and elsewhere have no row that both answered"),
        (("short", "long", "--max-cost", "1"), "the price of openai/judge is unknown"),
        (("short", "long", "-r", "knid"), "there is no rubric 'knid'"),
    ):
        done = compare(runs, fair.url, *words)
        assert (done.code > 0, message in done.error["message"]) == (True, True), words
    named = run_command("judge", "compare", "short", "long", "-r", "kind", "--json", cwd=runs)
    assert "XAI_API_KEY" in named.error["message"]
    with ModelEndpoint(lambda *_: Reply({"error": {"message": "bad key"}}, status=401)) as refusing:
        assert "bad key" in compare(runs, refusing.url, "short", "long").error["message"]
    assert fair.requests == []


def test_python_does_the_same_and_an_interrupted_call_goes_on(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs)

    def decide(body: JsonObject, number: int) -> Reply:
        return Reply(hang=True) if number == 9 else judge(longer)(body, number)

    async def cut_off() -> None:
        words = ["short", "longest"], RUBRIC[1], "judge"
        task = asyncio.create_task(osmosis.compare_answers_async(*words, base_url=endpoint.url, concurrency=1))
        await until(lambda: len(endpoint.requests) == 10)
        task.cancel()
        await task

    with ModelEndpoint(decide) as endpoint:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(cut_off())
        pair = [osmosis.Run.open("short"), Path(".osmosis/runs/longest")]
        found = osmosis.compare_answers(pair, RUBRIC[1], "judge", base_url=endpoint.url)
        assert len(endpoint.requests) == 2 * ROWS + 1
    assert found.preferences[0].wins_b == ROWS
    offline = osmosis.compare_answers(["short", "longest"], "Any text will do.", "offline/judge")
    assert (offline.preferences[0].ties, offline.counts["changed"]) == (ROWS, 0)
    with pytest.raises(TypeError, match="row_limit"):
        osmosis.compare_answers(["short", "long"], "Any text will do.", "offline/judge", row_limit=1)  # type: ignore
