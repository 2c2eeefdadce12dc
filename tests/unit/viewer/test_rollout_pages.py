"""The table of rollouts and the page of one, over a run in memory."""

import csv
import io
import re
from dataclasses import replace
from typing import Any

import pytest

from osmosis.records.run.rollout import Category, Failure, ModelCall, Phase, Rollout, Score, Usage
from osmosis.records.run.rows import Row
from osmosis.records.run.status import RunStatus
from osmosis.viewer.page import Document
from osmosis.viewer.run_source import RunState
from support.kept_run import KeptRun, answer_of, page_of, record_of, text_of
from support.platform_data import rollout, timeout

STATE = RunState("/runs/nightly", "nightly", "eval", RunStatus.FINISHED, "openai/x", completed=6, total=6)


def judged(row: int, attempt: int, value: float, **more: Any) -> Rollout:
    usage = Usage(prompt_tokens=100 * (row + 1), completion_tokens=10 * attempt, cost_usd=0.01 * (3 - row))
    scores = {
        "exact": Score(name="exact", value=value, reason="as the key says", metadata={"hard": row > 0}),
        "style": Score(name="style", value=0.1 * (3 * row + attempt), parts={"short": 1.0}),
    }
    return rollout(row, attempt, value, scores=scores, usage=usage, duration_ms=50.0 * (3 - attempt), **more)


@pytest.fixture
def kept() -> KeptRun:
    made = [
        judged(row, attempt, float((row, attempt) in {(0, 0), (0, 1), (1, 1)}))
        for row in range(3)
        for attempt in (0, 1)
    ]
    made[-1] = rollout(2, 1, failure=timeout())
    rows = [
        Row(index=i, data={"user_prompt": f"q{i}", "ground_truth": str(i * 10), "level": f"l{i}"}, content_hash=f"h{i}")
        for i in range(3)
    ]
    for one in made:
        one.hashes["row"] = f"h{one.row_index}"
    return KeptRun(STATE, None, made, rows=rows)


def lines(kept: KeptRun, query: str = "") -> list[str]:
    return [line["label"] for line in record_of(kept, "rollouts.json", query)["found"]["lines"]]


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("", ["0", "1", "2"]),
        ("outcome=passed", ["0", "1"]),
        ("outcome=failed", ["2"]),
        ("category=timeout", ["2"]),
        ("agree=no", ["1"]),
        ("row=1", ["1"]),
        ("outcome=nonsense&row=x&sort=odd", ["0", "1", "2"]),
        ("outcome=skipped", []),
        ("tool=multiply", ["0", "1", "2"]),
        ("tool=other", []),
        ("low=0.5", ["0", "1"]),
        ("score=style&low=0.3&high=0.45", ["1"]),
        ("sort=row&dir=down", ["2", "1", "0"]),
        ("sort=tokens", ["2", "1", "0"]),
        ("sort=tokens&dir=up", ["0", "2", "1"]),
        ("sort=cost", ["0", "1", "2"]),
        ("sort=score:style&dir=down", ["2", "1", "0"]),
        ("by=rollout&sort=duration&dir=up", ["0/1", "1/1", "0/0", "1/0", "2/0", "2/1"]),
        ("by=rollout&outcome=passed&sort=reward", ["0/0", "0/1", "1/1"]),
    ],
)
def test_the_table_is_filtered_and_sorted(kept: KeptRun, query: str, rows: list[str]) -> None:
    assert lines(kept, query) == rows


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("times", 6),
        ("TIMES Product", 6),
        ('"3 times 4"', 1),
        ('"4 times 3"', 1),
        ("prod*", 6),
        ("prod", 0),
        ("product -timeout", 5),
        ("finish within", 1),
        ('"as the key says"', 5),
        ("multiply", 6),
        ('"', 0),
        ("###", 0),
        ("AND OR NOT (", 0),
        ("product NEAR", 0),
        ("said:product*", 0),
    ],
)
def test_words_are_found_and_nothing_typed_is_an_operator(kept: KeptRun, words: str, found: int) -> None:
    assert record_of(kept, "rollouts.json", f"by=rollout&q={words}")["found"]["total"] == found


def test_scripts_without_spaces_are_found_by_any_part() -> None:
    messages = [{"role": "user", "content": "北京的天气怎么样?"}, {"role": "assistant", "content": "晴天"}]
    kept = KeptRun(STATE, None, [rollout(0, 0, messages=messages), rollout(1, 0)])
    assert lines(kept, "q=天气") == ["0/0"]
    assert lines(kept, "q=气天") == []


def test_a_line_has_all_attempts_and_says_which_fit(kept: KeptRun) -> None:
    (line,) = record_of(kept, "rollouts.json", "outcome=passed&row=1")["found"]["lines"]
    assert [(one["text"], one["fits"]) for one in line["attempts"]] == [("0", False), ("1", True)]
    assert line["url"] == "/runs/nightly/rollouts/1/1?outcome=passed&row=1"


def test_figures_of_a_row_are_means_and_sums(kept: KeptRun) -> None:
    found = record_of(kept, "rollouts.json", "row=1")["found"]
    cells = dict(zip([one["column"]["name"] for one in found["headings"]], found["lines"][0]["cells"], strict=True))
    assert {name: cell["text"] for name, cell in cells.items()} == {
        "prompt": "What is 3 times 3? | What is 3 times 4?",
        "expected": "10",
        "answer": "The product is 0. #### 0 | The product is 12. #### 12",
        "score:exact": "0.500",
        "score:style": "0.350",
        "failure": "–",
        "turns": "2",
        "tokens": "410",
        "cost": "$0.0400",
        "duration": "125 ms",
    }


def test_of_a_long_answer_the_end_is_shown(kept: KeptRun) -> None:
    kept.kept[2].messages[-1]["content"] = f"{'words ' * 60}#### 9"
    html = page_of(kept, "rollouts", "by=rollout&row=1")
    assert re.search(r'class="text tail"[^>]*><div><span>…[^<]* #### 9</span>', html)


def test_only_the_reward_says_whether_it_passed(kept: KeptRun) -> None:
    html = page_of(kept, "rollouts/0/0")
    assert re.search(r'exact</span> <strong class="passes">', html)
    assert re.search(r'style</span> <strong class="">', html)


def test_columns_are_chosen_also_those_of_the_dataset_and_of_scores(kept: KeptRun) -> None:
    page_text = page_of(
        kept, "rollouts", "col=row:level&col=meta:exact.hard&col=part:style.short&col=reason:exact&col=odd:x&col=odd"
    )
    head = re.findall(r'<th scope="col"[^>]*>(.*?)</th>', page_text)
    assert head[2:] == ["level", "hard", "short", "reason exact"]
    assert "l1" in page_text
    offered = re.findall(r'name="col" value="([^"]+)"', page_text)
    assert {"row:ground_truth", "row:level", "meta:exact.hard", "part:style.short", "reason:exact", "model"} <= set(
        offered
    )


def test_a_row_that_was_edited_since_is_not_shown_as_what_was_asked(kept: KeptRun) -> None:
    kept.rows = [replace(row, content_hash="other") for row in kept.rows]
    assert record_of(kept, "rollouts/1/0.json")["found"]["row"] == {}
    assert "Expected</h2>" not in page_of(kept, "rollouts/1/0")


def test_pages_of_a_long_table(kept: KeptRun) -> None:
    kept.kept = [rollout(row, 0, float(row % 2)) for row in range(120)]
    assert lines(kept, "at=3") == [f"{row}/0" for row in range(100, 120)]
    assert lines(kept, "at=99") == lines(kept, "at=3")
    html = page_of(kept, "rollouts", "at=2&outcome=&sort=row")
    assert 'rel="prev" href="?sort=row&amp;at=1"' in html
    assert "Page 2 of 3" in html
    assert lines(kept, "outcome=failed") == []


def test_the_table_as_csv_and_json(kept: KeptRun) -> None:
    kept.kept[0].messages[-1]["content"] = "=HYPERLINK(1)"
    found = answer_of(kept, "rollouts/export.csv", "outcome=passed")
    assert isinstance(found, Document)
    rows = list(csv.DictReader(io.StringIO(b"".join(found.content).decode())))
    assert [(row["row"], row["attempt"], row["score:exact"]) for row in rows] == [
        ("0", "0", "1.0"), ("0", "1", "1.0"), ("1", "1", "1.0"),
    ]  # fmt: skip
    assert rows[0]["answer"] == "'=HYPERLINK(1)", "no program takes it for a formula"
    assert found.headers["Content-Disposition"] == 'attachment; filename="nightly-rollouts.csv"'
    every = record_of(kept, "rollouts/export.json", "col=expected&col=tokens")
    assert every[2] == {"step": 0, "row": 1, "attempt": 0, "outcome": "not-passed", "expected": "10", "tokens": 200}
    assert record_of(kept, "rollouts/export.json", "outcome=skipped") == []


def test_the_next_one_is_that_of_the_filter_one_came_with(kept: KeptRun) -> None:
    found = record_of(kept, "rollouts/0/1.json", "outcome=passed")["found"]
    assert (found["before"]["url"], found["after"]["url"]) == (
        "/runs/nightly/rollouts/0/0?outcome=passed", "/runs/nightly/rollouts/1/1?outcome=passed",
    )  # fmt: skip
    assert found["back"] == "/runs/nightly/rollouts?outcome=passed"
    assert found["next_failed"]["title"] == "row 2, attempt 1"
    cheapest = record_of(kept, "rollouts/1/0.json", "sort=cost&dir=up")["found"]
    assert (cheapest["before"]["title"], cheapest["after"]["title"]) == ("row 2, attempt 0", "row 1, attempt 1")
    back = record_of(kept, "rollouts/1/0.json", "sort=row&dir=down")["found"]
    assert (back["before"]["title"], back["after"]["title"]) == ("row 1, attempt 1", "row 0, attempt 1")


def test_the_answer_stands_beside_what_was_expected(kept: KeptRun) -> None:
    kept.rows[1].data["ground_truth"] = "The product is 9."
    kept.kept[2].messages[-1]["content"] = "The product is 12."
    found = record_of(kept, "rollouts/1/0.json")["found"]["answer"]
    assert (found["expected"], found["answer"]) == ("The product is 9.", "The product is 12.")
    assert [(one["kind"], one["text"]) for one in found["diff"]] == [
        ("same", "The product is "), ("missing", "9"), ("extra", "12"), ("same", "."),
    ]  # fmt: skip
    html = page_of(kept, "rollouts/1/0")
    assert "<del>9</del><ins>12</ins>" in html
    assert "l1" in text_of(html), "the whole row"


def test_a_timeline_has_the_calls_and_what_is_between_them(kept: KeptRun) -> None:
    one = kept.kept[0]
    one.calls = [
        ModelCall(started_ms=10, duration_ms=100, usage=one.usage, finish_reason="tool_calls"),
        ModelCall(started_ms=300, duration_ms=50, error="429 too many requests"),
        ModelCall(started_ms=400, duration_ms=100, usage=one.usage, finish_reason="stop"),
    ]
    one.duration_ms = 520
    spans = record_of(kept, "rollouts/0/0.json")["found"]["spans"]
    assert [(s["kind"], s["started_ms"], s["duration_ms"], s["message"]) for s in spans] == [
        ("agent", 0.0, 10.0, None),
        ("model", 10.0, 100.0, 2),
        ("tools", 110.0, 190.0, None),
        ("model", 300.0, 50.0, None),
        ("agent", 350.0, 50.0, None),
        ("model", 400.0, 100.0, 4),
        ("agent", 500.0, 20.0, None),
    ]
    assert spans[2]["label"] == "multiply"
    html = page_of(kept, "rollouts/0/0")
    assert "429 too many requests" in html
    assert 'href="#m4"' in html
    assert 'id="m4"' in html


def test_markdown_is_rendered_and_nothing_in_it_is_a_page(kept: KeptRun) -> None:
    kept.kept[0].messages[-1]["content"] = (
        "# Sure\n\n**bold** `code`\n\n<script>alert(1)</script> ![pixel](https://evil.test/x.png)\n"
        "[bad](javascript:alert(1)) [good](https://example.test)\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
    )
    html = page_of(kept, "rollouts/0/0")
    assert "<strong>bold</strong> <code>code</code>" in html
    assert "<script>alert" not in html
    assert '<img src="https' not in html
    assert 'href="javascript' not in html
    assert '<a href="https://example.test" rel="noreferrer noopener nofollow">good</a>' in html
    assert "<td>1</td>" in html
    assert html.count("<h1>") == 1, "a heading of a message is none of the page's"
    assert '<p class="said-heading"># Sure</p>' in html, "what a grader looks for stays"
    assert "**bold**" in html, "the source can be read, too"


def test_a_result_stands_in_the_call_that_it_answers(kept: KeptRun) -> None:
    html = page_of(kept, "rollouts/0/0")
    assert html.count('class="turn ') == 4, "system, user, assistant with its result, assistant"
    assert html.index('<code title="call_1">multiply</code>') < html.index('class="result"') < html.index('id="m4"')
    orphan = [{"role": "tool", "tool_call_id": "none", "content": "lost"}]
    kept.kept[0].messages = orphan
    assert "lost" in page_of(kept, "rollouts/0/0")


def test_a_rollout_with_a_broken_score_fails_with_its_reason() -> None:
    broken = Failure(
        phase=Phase.SCORE, category=Category.SCORE_ERROR, message="division by zero", traceback="Traceback: x"
    )
    kept = KeptRun(STATE, None, [rollout(0, 0, scores={"exact": Score(name="exact", failure=broken)})])
    (line,) = record_of(kept, "rollouts.json", "col=failure&col=message")["found"]["lines"]
    assert [cell["text"] for cell in line["cells"]] == ["score error", "division by zero"]
    assert "Traceback: x" in page_of(kept, "rollouts/0/0")
