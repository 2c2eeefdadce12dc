"""The pages of a run in memory."""

from dataclasses import replace
from datetime import datetime, timezone
from urllib.parse import parse_qsl

import pytest

from osmosis.errors import NotFound
from osmosis.metrics.figures import figures
from osmosis.records.api.body import LogEntry
from osmosis.records.api.runs import RunEvent
from osmosis.records.run.job import JobResult, MetricPoint
from osmosis.records.run.report import GroupReport
from osmosis.records.run.rollout import Score
from osmosis.records.run.source import SnapshotNote
from osmosis.records.run.status import RunStatus
from osmosis.viewer import routes
from osmosis.viewer.diff import split_files
from osmosis.viewer.page import QueryParams
from osmosis.viewer.routes import list_config_tables
from osmosis.viewer.run_source import CheckpointLine, Fact, Origin, RunSettings, RunState
from support.kept_run import KeptRun, html_of, page_of, record_of, text_of
from support.platform_data import report, rollout, timeout

STATE = RunState("/runs/nightly", "nightly", "eval", RunStatus.FINISHED, "openai/x", completed=6, total=6)
EVIL = "<script>alert(1)</script>"


@pytest.fixture
def kept() -> KeptRun:
    rollouts = [rollout(row, attempt, float(row > 0)) for row in range(2) for attempt in range(2)]
    return KeptRun(STATE, report(2, 2), [*rollouts, rollout(2, 0, failure=timeout())])


def test_the_page_of_a_run_shows_every_figure_of_its_report(kept: KeptRun) -> None:
    said = text_of(html_of(routes.run_page(kept, QueryParams())))
    for figure in figures(report(2, 2)):
        assert f"{figure.label[:1].upper()}{figure.label[1:]} {figure.text}" in said
        assert figure.between in said
        assert figure.detail in said


def test_the_parts_of_a_score_have_their_means(kept: KeptRun) -> None:
    def scores(ran: float, shape: float) -> dict[str, Score]:
        return {"reward": Score(name="reward", value=ran, parts={"shape": shape, "ran": ran})}

    kept.kept = [rollout(0, 0, scores=scores(1.0, 0.5)), rollout(1, 0, scores=scores(0.0, 0.25)), *kept.kept]
    text = text_of(html_of(routes.run_page(kept, QueryParams())))
    assert "Parts of the scores Score Part Mean Rollouts reward shape 0.375 2 reward ran 0.500 2" in text
    kept.kept = kept.kept[2:]
    assert "Parts of the scores" not in html_of(routes.run_page(kept, QueryParams()))


def test_values_of_a_dataset_stand_in_figures_as_text(kept: KeptRun) -> None:
    kind = GroupReport(column="kind", value=EVIL, rows=7, scores=report(2, 2).scores)
    kept.found = report(2, 2, groups=[kind])
    page = html_of(routes.run_page(kept, QueryParams()))
    assert EVIL not in page
    assert "7 rows, pass rate" in page


def test_what_a_run_was_made_of(kept: KeptRun) -> None:
    facts = (
        Fact("Journal", f"runs/{EVIL}", "/files", note="on disk"),
        Fact("Commit", None),
        Fact("Code", "abc", code=True),
    )
    kept.made_of = Origin(facts, [RunEvent(timestamp="2026-01-02T03:04:05", status="finished", reason="")])
    page = html_of(routes.run_page(kept, QueryParams()))
    assert '<a href="/files">runs/&lt;script&gt;' in page
    assert "Commit none" in text_of(page)
    assert "<code>abc</code>" in page
    assert "2026-01-02 03:04:05" in page


DIFF = """diff --git a/rollouts/multiply/main.py b/rollouts/multiply/main.py
--- a/rollouts/multiply/main.py
+++ b/rollouts/multiply/main.py
@@ -1,2 +1,2 @@
 same
-<old>
+<script>alert(1)</script>
diff --git a/new.md b/new.md
new file mode 100644
--- /dev/null
+++ b/new.md
@@ -0,0 +1,2 @@
+one
+--- two"""


def test_what_was_not_committed_is_shown_line_by_line(kept: KeptRun) -> None:
    assert [(one.name, one.added, one.removed) for one in split_files(DIFF)] == [
        ("rollouts/multiply/main.py", 1, 1),
        ("new.md", 2, 0),
    ]
    assert split_files("") == []
    note = SnapshotNote(parent="abc" * 10, files=["rollouts/multiply/main.py", "new.md"], diff=DIFF)
    kept.made_of = Origin((), [], note)
    page = html_of(routes.run_page(kept, QueryParams()))
    assert '<span class="removed">-&lt;old&gt;</span>' in page
    assert '<span class="added">+&lt;script&gt;alert(1)&lt;/script&gt;</span>' in page
    assert EVIL not in page
    assert "from commit abcabcabcabc , in 2 files" in text_of(page)
    kept.made_of = Origin((), [], SnapshotNote(files=["only.bin"]))
    assert "<code>only.bin</code>" in html_of(routes.run_page(kept, QueryParams()))


def test_only_a_run_that_goes_on_is_followed(kept: KeptRun) -> None:
    assert "hx-sse:connect" not in html_of(routes.run_page(kept, QueryParams()))
    kept.run = replace(STATE, status=RunStatus.RUNNING, stage="rollouts")
    page = html_of(routes.run_page(kept, QueryParams()))
    assert 'hx-sse:connect="/runs/nightly/events?"' in page
    assert 'aria-current="step">rollouts' in page
    part, final = routes.build_run_changes(kept, QueryParams())
    assert html_of(part) in page
    assert not final


def test_a_finished_run_is_followed_until_it_is_indexed(kept: KeptRun) -> None:
    kept.unread = 7
    page = html_of(routes.run_page(kept, QueryParams()))
    assert "Indexing the rollouts" in text_of(page)
    assert "hx-sse:connect" in page
    assert not routes.build_run_changes(kept, QueryParams())[1]


def test_what_changes_is_all_that_a_page_counts(kept: KeptRun) -> None:
    kept.run = replace(STATE, status=RunStatus.RUNNING, stage="rollouts")
    for of, query in (("rollouts", "outcome=passed&sort=reward"), ("logs", "level=error")):
        asked = QueryParams(parse_qsl(query))
        page = html_of(routes.build_run_page(kept, of, asked))
        part, final = routes.build_run_changes(kept, QueryParams([*asked.pairs, ("of", of)]))
        assert html_of(part) in page
        assert f'hx-sse:connect="/runs/nightly/events?{query.replace("&", "&amp;")}&amp;of={of}"' in page
        assert page.count("hx-sse:connect") == 1
        assert "hx-get" not in page
        assert "of=" not in html_of(part), "links go to the page, not to its stream"
        assert not final
    with pytest.raises(NotFound):
        routes.build_run_changes(kept, QueryParams([("of", "config")]))


def test_a_run_without_a_report_says_what_it_waits_for() -> None:
    waiting = KeptRun(replace(STATE, status=RunStatus.RUNNING, model="offline/calculator", completed=0))
    said = text_of(html_of(routes.run_page(waiting, QueryParams())))
    assert "Figures appear with the first rollout" in said
    assert "stand-in" in said


def test_a_run_that_its_own_limit_ended_did_not_fail() -> None:
    ended = JobResult.used_up("budget: 900 of 800 tokens used", report(2, 2))
    said = text_of(page_of(KeptRun(replace(STATE, status=RunStatus.STOPPED, failure=ended.failure)), ""))
    assert (
        "This run ended by its own limit budget: 900 of 800 tokens used What to do: finished rollouts are kept" in said
    )
    assert "This run failed" not in said
    assert "This run failed" in text_of(
        page_of(KeptRun(replace(STATE, status=RunStatus.FAILED, failure=timeout())), "")
    )


def test_curves_of_a_training_run() -> None:
    points = [MetricPoint(key="loss", step=step, value=1.0 / step) for step in (1, 2)]
    training = KeptRun(replace(STATE, kind="training"), curve=points)
    assert "loss" in text_of(html_of(routes.run_page(training, QueryParams())))


def test_a_training_run_shows_alarms_curves_and_its_best_checkpoint() -> None:
    points = [MetricPoint(key="rollout/no_signal_ratio", step=step, value=1.0) for step in range(3)]
    points += [MetricPoint(key="rollout/raw_reward", step=step, value=0.0) for step in range(3)]
    saved = [
        CheckpointLine(f"multiply-1-step-{step}", step, "ready", reward, datetime(2026, 1, 1, tzinfo=timezone.utc))
        for step, reward in ((1, 0.5), (2, 0.75), (3, 0.25))
    ]
    training = KeptRun(replace(STATE, kind="training", status=RunStatus.RUNNING), curve=points, saved=saved)
    said = text_of(html_of(routes.run_page(training, QueryParams())))
    assert "nothing is learned from them" in said
    assert "multiply-1-step-2 best" in said
    assert "Training reward" in said
    nothing = KeptRun(replace(STATE, kind="training", status=RunStatus.RUNNING))
    assert "Curves appear with the first step" in text_of(html_of(routes.run_page(nothing, QueryParams())))


def test_the_rollouts_of_a_step_are_apart_from_those_of_another() -> None:
    kept = [rollout(0, 0, reward).model_copy(update={"step": step}) for step, reward in ((1, 0.0), (2, 1.0))]
    training = KeptRun(replace(STATE, kind="training"), kept=kept)
    listed = page_of(training, "rollouts", step=2)
    assert ">2: 0/0</a>" in listed
    assert ">1: 0/0</a>" not in listed
    assert "/rollouts/0/0?step=2&amp;only=step" in listed
    page = page_of(training, "rollouts/0/0", step=2)
    assert "Step 2, row 0, attempt 0" in page
    assert "/rollouts/0/0?step=1" in page, "the one before"
    assert 'rel="prev"' not in page_of(training, "rollouts/0/0", step=2, only="step")
    assert 'href="/runs/nightly/rollouts/0/0?step=2&amp;beside=1">1</a>' in page
    pair = text_of(page_of(training, "rollouts/0/0", step=2, beside=1))
    assert pair.index("step 1 reward 0.000") < pair.index("step 2 reward 1.000")


def test_the_log_and_its_lines_alone(kept: KeptRun) -> None:
    kept.lines = [LogEntry(timestamp="2026-01-02T03:04:05", level="info", step="x", message=EVIL, details={"a": 1})]
    page, lines = (
        page_of(kept, "logs", level="odd"),
        html_of(routes.build_run_changes(kept, QueryParams([("of", "logs")]))[0]),
    )
    assert lines in page
    assert EVIL not in page
    assert "03:04:05" in lines
    assert "<main" not in lines


@pytest.mark.parametrize("path", ["odd", "rollouts/x/0", "rollouts/0", "rollouts/0/0/0", "rollouts/7/0", "live.json"])
def test_what_is_no_page_is_not_found(kept: KeptRun, path: str) -> None:
    with pytest.raises(NotFound):
        routes.build_run_page(kept, path, QueryParams())


@pytest.mark.parametrize("path", ["", "rollouts", "rollouts/2/0", "config", "logs"])
def test_every_page_has_a_twin_with_its_record(kept: KeptRun, path: str) -> None:
    assert record_of(kept, f"{path}.json" if path else "index.json")["run"]["name"] == "nightly"


def test_the_twin_says_what_the_page_does(kept: KeptRun) -> None:
    assert record_of(kept, "rollouts/0/1.json")["record"]["rollout_id"] == "r-0-1"
    listed = record_of(kept, "rollouts.json", outcome="passed")["found"]
    assert (listed["total"], listed["lines"][0]["attempts"][0]["outcome"]) == (1, "passed")
    assert record_of(kept, "index.json")["report"]["rows"] == 2


def test_the_config_is_shown_with_what_was_fixed_beside_it(kept: KeptRun) -> None:
    kept.fixed = RunSettings({"evaluation": {"n": 3, "flag": True}}, "As run", (Fact("Rows", "0-9"),))
    said = text_of(html_of(routes.config_page(kept)))
    assert "[evaluation] n = 3 flag = true" in said
    assert "As run Rows 0-9" in said


def test_config_is_shown_in_the_order_of_the_file() -> None:
    lines = list_config_tables({"secrets": {"required": []}, "experiment": {"rollout": 'a"b'}, "evaluation": {}})
    assert [table for table, _ in lines] == ["experiment", "secrets"]
    assert lines[0][1] == [("rollout", '"a\\"b"')]
