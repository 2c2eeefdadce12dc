"""What is written for others: the published results document, and reports that stand alone."""

import json
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest

from osmosis.engine.journal import Journal
from osmosis.engine.limits import Limiter
from osmosis.engine.output import report_files
from osmosis.engine.output.results_json import check_output, write_results
from osmosis.errors import ValidationError
from osmosis.metrics.summary import summarize
from osmosis.records.run.rollout import Category, Failure, Phase, Rollout, RolloutStatus, Score


@pytest.fixture
async def ran(run, make_plan, make_rows, tmp_path):
    plan = make_plan(
        attempts=3, agent="helpers_agents:misbehaving", name="<b>run</b>", score_fns=["helpers_agents:exact"]
    )
    rows = [*make_rows(4), *make_rows(5, mode="raise")[4:]]
    rows[0].data["user_prompt"] = "<script>alert(1)</script> [red]x[/red] 3 * 7"
    journal = Journal(tmp_path / "j")
    report = await run(plan, rows, scores=["exact", "by_mode"], journal=journal)
    return journal, plan, report


async def test_the_results_document_has_the_published_shape(ran, tmp_path):
    journal, plan, report = ran
    path = tmp_path / "out" / "results.json"
    check_output(path)
    write_results(path, journal, plan, report, baselines={})
    found = json.loads(path.read_text())
    assert list(found)[:3] == ["config", "summary", "rows"]
    assert list(found["config"])[:4] == ["model", "n_runs", "pass_threshold", "eval_fns"]
    assert list(found["summary"])[:5] == ["total_rows", "total_runs", "eval_fns", "total_tokens", "total_duration_ms"]
    figures = found["summary"]["eval_fns"]["helpers_agents:exact"]
    assert list(figures)[:6] == ["mean", "std", "min", "max", "pass_at_1", "pass_at_3"]
    assert found["summary"]["total_runs"] == 15
    assert [row["row_index"] for row in found["rows"]] == [0, 1, 2, 3, 4]
    run = found["rows"][1]["runs"][2]
    assert list(run)[:5] == ["run_index", "success", "scores", "duration_ms", "tokens"]
    assert run["run_index"] == 2
    assert run["success"] is True
    assert "error" not in run
    broken = found["rows"][4]["runs"][0]
    assert (broken["success"], broken["scores"]) == (False, {})
    assert "fell over" in broken["error"]
    assert found["rows"][1]["pass_rate"]["helpers_agents:exact"] == pytest.approx(
        sum(r["scores"]["helpers_agents:exact"] for r in found["rows"][1]["runs"]) / 3
    )
    assert broken["scores"] == {}
    assert found["rows"][4]["pass_rate"]["helpers_agents:exact"] == 0.0
    values = [v for row in found["rows"] for r in row["runs"] for v in [r["scores"].get("helpers_agents:exact", 0.0)]]
    assert figures["mean"] == pytest.approx(sum(values) / 15)


async def test_the_agents_own_reward_stands_beside_the_functions_asked_for(run, make_plan, make_rows, tmp_path):
    for functions in (["exact"], []):
        names = [f"helpers_agents:{name}" for name in functions]
        plan = make_plan(agent="helpers_agents:Work", score_fns=names)
        journal = Journal(tmp_path / f"own-{len(names)}")
        report = await run(
            plan, make_rows(3), scores=functions, agent=plan.agent, grader="helpers_agents:Grade", journal=journal
        )
        write_results(tmp_path / "own.json", journal, plan, report)
        found = json.loads((tmp_path / "own.json").read_text())
        assert list(found["summary"]["eval_fns"]) == names
        assert found["summary"]["reward"]["scored"] == 3
        for row in found["rows"]:
            assert list(row["runs"][0]["scores"]) == names
            assert row["runs"][0]["reward"] is not None


async def test_a_rows_pass_rate_does_not_depend_on_its_first_attempt(tmp_path, make_plan):
    plan = make_plan(attempts=4)
    journal = Journal(tmp_path / "j")
    journal.open(plan)
    for attempt, (status, value) in enumerate([("failed", None), ("success", 1.0), ("success", 0.0), ("skipped", 1.0)]):
        failure = None
        if status == "failed":
            failure = Failure(phase=Phase.AGENT, category=Category.TIMEOUT, message="late")
        journal.append(
            Rollout(
                rollout_id=f"0-{attempt}",
                row_index=0,
                attempt=attempt,
                status=RolloutStatus(status),
                failure=failure,
                scores={} if value is None else {"reward": Score(name="reward", value=value)},
            )
        )
    journal.close()
    write_results(tmp_path / "r.json", journal, plan, summarize(journal.rollouts(), plan))
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["rows"][0]["pass_rate"]["reward"] == pytest.approx(1 / 3)
    assert found["summary"]["reward"]["pass_rate"] == pytest.approx(1 / 3)


def test_where_nothing_can_be_written_is_found_out_first(tmp_path):
    with pytest.raises(ValidationError, match="is a folder"):
        check_output(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValidationError):
        check_output(tmp_path / "file" / "results.json")


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.seen = []
        self.links = []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.links += [value for key, value in attrs if key in ("src", "href")]


async def test_the_html_report_stands_alone_and_shows_text_as_text(ran):
    text = report_files.html(*ran)
    tags = Tags()
    tags.feed(text)
    assert "script" not in tags.seen
    assert tags.links == []
    assert tags.seen.count("svg") >= 4
    assert tags.seen.count("details") == 15
    assert "&lt;script&gt;alert(1)" in text
    assert "agent fell over" in text
    assert "pass@3" in text


async def test_junit_counts_cases_failures_and_errors(ran):
    journal, plan, report = ran
    root = ElementTree.fromstring(report_files.junit(journal, plan, report))
    (suite,) = root
    assert int(suite.get("tests")) == 15
    assert int(suite.get("errors")) == 3
    assert int(suite.get("failures")) == 12 - report.primary.passed
    assert suite.find("testcase/error").get("type") == "agent/agent_error"


async def test_markdown_escapes_what_it_shows(ran):
    text = report_files.markdown(*ran)
    assert text.startswith("# \\<b\\>run\\</b\\>")
    assert "| pass@3 |" in text
    assert "agent\\_error" in text or "| agent | agent_error |" in text


async def test_an_adaptive_limit_grows_and_halves():
    limiter = Limiter(64, adaptive=True)
    assert limiter.limit == 8
    for _ in range(8):
        await limiter.acquire()
    for _ in range(200):
        limiter.answered(0.01)
    grown = limiter.limit
    assert grown > 8
    limiter.rate_limited(0.0)
    assert limiter.limit == pytest.approx(grown / 2)
    limiter.rate_limited(0.0)
    assert limiter.limit == pytest.approx(grown / 2)
    fixed = Limiter(4)
    fixed.rate_limited(1.0)
    assert fixed.limit == 4


def test_a_reports_conversations_have_reasoning_images_and_sources(tmp_path, make_plan):
    picture = "data:image/png;base64,AAAA"
    message = {
        "role": "assistant",
        "content": [{"type": "text", "text": "a <cat>"}, {"type": "image_url", "image_url": {"url": picture}}],
        "reasoning_content": "first <think>",
        "annotations": [{"type": "url_citation", "url_citation": {"url": "https://x.test/?a=1&b", "title": "<X>"}}],
    }
    plan, journal = make_plan(), Journal(tmp_path / "j")
    journal.open(plan)
    journal.append(Rollout(rollout_id="0", row_index=0, attempt=0, status=RolloutStatus.SUCCESS, messages=[message]))
    journal.close()
    shown = report_files.html(journal, plan, summarize(journal.rollouts(), plan))
    assert "first &lt;think&gt;" in shown
    assert f'<img src="{picture}"' in shown
    assert "&lt;X&gt; https://x.test/?a=1&amp;b" in shown
    assert "a &lt;cat&gt;\n[image]" in shown


async def test_a_journal_is_read_in_order(ran):
    journal, _, _ = ran
    lines = list(journal.in_order())
    assert [(line["row_index"], line["attempt"]) for line in lines] == [(r, a) for r in range(5) for a in range(3)]
    with journal.rewriting() as out:
        out.write(journal.rollouts_path.read_bytes().split(b"\n", 1)[1])
    assert len(list(journal.in_order())) == 14
