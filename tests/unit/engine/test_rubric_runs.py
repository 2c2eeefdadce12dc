"""`eval-rubric`, `eval rubric`, `preview`: files with line numbers, durable results, resume, exit codes."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from osmosis.cli.main import main
from osmosis.engine.journal import Journal
from osmosis.engine.rubrics.conversations import load_rubric_records
from osmosis.engine.rubrics.rubric_files import load_rubric_configs, load_rubric_suite
from osmosis.engine.rubrics.rubric_report import Baseline, build_report, summarise
from osmosis.engine.rubrics.rubric_run import RubricJob, judged_already, run_rubric, stored_runs
from osmosis.errors import ValidationError

RUBRICS = """\
version: 1
default_model_info: {provider: offline, model: judge}
suites:
  first:
    - id: tone
      title: Tone
      rubric: |
        Be kind.
        Be short.
  second:
    - id: facts
      rubric: Only facts.
      score_min: 0
      score_max: 5
"""
DATA = [
    {"conversation_id": "c1", "rubric_id": "TONE", "solution_str": "kind words [/red]", "ground_truth": "kind words"},
    {"conversation_id": "c2", "rubric_id": "facts", "solution_str": ""},
    {"rubric_id": "tone", "solution_str": "rude", "ground_truth": "kind words"},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rubric_configs.yaml").write_text(RUBRICS)
    (tmp_path / "data.jsonl").write_text("\n\n".join(json.dumps(one) for one in DATA) + "\n")
    return tmp_path


def run(folder: Path, *words: str, environ: dict[str, str] | None = None) -> int:
    return main(["--json", *words], environ={"OSMOSIS_CACHE_DIR": str(folder / "cache"), **(environ or {})}, cwd=folder)


def data(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["data"]
    return found


class TestFiles:
    def wrong(self, tmp_path: Path, text: str) -> list[str]:
        path = tmp_path / "r.yaml"
        path.write_text(text)
        with pytest.raises(ValidationError) as caught:
            load_rubric_suite(path)
        return [issue["where"].split(":", 1)[1] + ": " + issue["message"] for issue in caught.value.issues]

    def test_entries_are_found_anywhere_with_their_defaults(self, folder: Path) -> None:
        suite = load_rubric_suite(folder / "rubric_configs.yaml")
        assert suite.available_ids() == ["tone", "facts"]
        tone = suite.get("Tone")
        assert (tone.label, tone.line, tone.model_info["provider"]) == ("suites.first[0]", 5, "offline")
        assert suite.get("facts").score_max == 5
        with pytest.raises(ValidationError, match="it has: tone, facts"):
            suite.get("nope")

    def test_every_problem_has_its_line(self, tmp_path: Path) -> None:
        found = self.wrong(
            tmp_path,
            "rubrics:\n  - id: a\n    rubric: x\n    model_info: {provider: p}\n    score_min: high\n"
            "  - id: ' '\n    rubric: x\n    model_info: {provider: p, model: m}\n    extra_info: {}\n"
            "  - id: b\n    rubric: ' '\n    model_info: 3\n    score_min: 2\n",
        )
        assert found == [
            "4: rubrics[0].model_info.model: must be a non-empty string",
            "5: rubrics[0].score_min: must be a number, got 'high'",
            "6: rubrics[1].id: must be a non-empty string",
            "9: rubrics[1].extra_info: extra_info does not belong in a rubric file: put it in the records of the "
            "data file",
            "11: rubrics[2].rubric: must not be empty",
            "12: rubrics[2].model_info: must be a mapping with provider and model (or set default_model_info)",
            "13: rubrics[2].score_min: score_max must be greater than score_min, got 2 to 1",
        ]

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("version: 2\nr: {id: a, rubric: x, model_info: {provider: p, model: m}}", "version 2 is not known"),
            ("version: true\nr: []", "must be a whole number"),
            ("version: 1\nr: []\n---\nr: []", "different versions"),
            ("default_extra_info: {}", "does not belong"),
            ("default_score_min: low", "must be a number"),
            (
                "r:\n - {id: a, rubric: x, model_info: {provider: p, model: m}}\n - {id: a, rubric: y}",
                "already used on line",
            ),
            ("other: 1", "no rubric found"),
        ],
    )
    def test_files_that_are_refused(self, tmp_path: Path, text: str, words: str) -> None:
        assert any(words in one for one in self.wrong(tmp_path, text))

    def test_syntax_errors_name_line_and_column(self, tmp_path: Path) -> None:
        (tmp_path / "r.yaml").write_text("a: [1\nb: 2\n")
        with pytest.raises(ValidationError, match=r"r\.yaml:2:2: not YAML"):
            load_rubric_suite(tmp_path / "r.yaml")

    def test_typing_errors_are_warnings_with_a_guess(self, tmp_path: Path) -> None:
        path = tmp_path / "r.yaml"
        path.write_text("r:\n  id: a\n  rubric: x\n  scoremax: 3\n  model_info: {provider: p, model: m, time_out: 3}\n")
        warnings = load_rubric_suite(path).warnings
        assert "model_info.time_out is unknown and ignored; did you mean timeout?" in warnings[0]
        assert "r.scoremax is unknown and ignored; did you mean score_max?" in warnings[1]

    def test_previews_show_broken_entries(self, tmp_path: Path) -> None:
        path = tmp_path / "r.yaml"
        path.write_text("- {id: a, rubric: x, model_info: {provider: p, model: m}}\n- {rubric: y}\n")
        items = load_rubric_configs(path)
        assert [len(item.problems) for item in items] == [0, 2]
        assert [item.line for item in items] == [1, 2]

    def test_records_of_other_rubrics_stop_nothing(self, folder: Path) -> None:
        records = load_rubric_records(folder / "data.jsonl", "tone")
        assert [(one.index, one.line, one.conversation_id) for one in records] == [(1, 1, "c1"), (3, 5, "record[3]")]
        with pytest.raises(ValidationError, match=r"data\.jsonl:3: solution_str: record c2"):
            load_rubric_records(folder / "data.jsonl", "facts")
        with pytest.raises(ValidationError, match="no record in"):
            load_rubric_records(folder / "data.jsonl", "other")

    def test_lines_that_are_no_objects(self, tmp_path: Path) -> None:
        path = tmp_path / "d.jsonl"
        for text, words in (("{}\n[1]\n", ":2: a JSON list"), ("{}\n{bad\n", ":2: not JSON"), ("\n", "is empty")):
            path.write_text(text)
            with pytest.raises(ValidationError, match=words):
                load_rubric_records(path, None if words == "is empty" else "x")


class TestRun:
    def test_report_and_results(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(folder, "eval-rubric", "-r", "tone", "-d", "data.jsonl", "-n", "2", "-o", "out/r.json") == 0
        report = json.loads((folder / "out" / "r.json").read_text())
        assert list(report).index("overall_statistics") < list(report).index("records")
        assert report["overall_statistics"]["total_runs"] == 4
        assert report["overall_statistics"]["average"] == 0.5
        assert report["overall_statistics"]["stdev"] == 0.5
        first = report["records"][0]
        assert (first["id"], first["record_index"], first["runs"][1]["run_index"]) == ("c1", 1, 2)
        assert "output_identifier" not in report
        assert [path.name for path in (folder / "out").iterdir()] == ["r.json"], "nothing is left to resume"
        assert data(capsys)["output_path"] == str(folder / "out" / "r.json")

    def test_where_reports_go(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for words in ([], ["-o", "reports"]):
            assert run(folder, "eval-rubric", "-r", "tone", "-d", "data.jsonl", *words) == 0
            shown = data(capsys)
            path = Path(shown["output_path"])
            assert path.name == f"rubric_eval_result_{shown['output_identifier']}.json"
            assert path.parent in (folder / "cache" / "eval_result" / "tone", folder / "reports")

    def test_baseline(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (folder / "old.json").write_text('{"average": 0.25, "note": "x"}')
        assert run(folder, "eval-rubric", "-r", "tone", "-d", "data.jsonl", "-b", "old.json", "-o", "r.json") == 0
        compared = data(capsys)["baseline_comparison"]
        assert compared["delta_statistics"] == {"average": 0.25}
        (folder / "old.json").write_text('{"average": "x"}')
        with pytest.raises(ValidationError, match="has no figures"):
            Baseline.read(folder / "old.json")

    def test_all_failed_is_exit_1_and_resume_asks_only_what_failed(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (folder / "mine.py").write_text(
            "import pathlib\n"
            "def fails(solution_str, ground_truth, extra_info):\n    raise RuntimeError('no judge today')\n"
            "def flaky(solution_str, ground_truth, extra_info):\n"
            f"    with open({str(folder / 'asked')!r}, 'a') as asked: asked.write(solution_str + chr(10))\n"
            "    if 'rude' in solution_str and not pathlib.Path('ready').exists(): raise RuntimeError('not yet')\n"
            "    return 0.5\n"
        )
        base = ["eval-rubric", "-r", "tone", "-d", "data.jsonl", "-o", "r.json", "--rubric-fn"]
        assert run(folder, *base, "mine:fails") == 1
        shown = data(capsys)
        assert shown["overall_statistics"] == {
            **dict.fromkeys(("average", "variance", "stdev", "min", "max"), 0.0),
            "total_runs": 2,
            "success_count": 0,
            "failure_count": 2,
        }
        assert "no judge today" in shown["records"][0]["runs"][0]["error"]
        assert run(folder, *base, "mine:flaky") == 0
        capsys.readouterr()
        report = json.loads((folder / "r.json").read_text())
        assert [run["status"] for record in report["records"] for run in record["runs"]] == ["success", "error"]
        asked = (folder / "asked").read_text()
        assert run(folder, *base, "mine:flaky", "--resume") == 0
        assert data(capsys)["overall_statistics"]["failure_count"] == 1
        # Asked once more, for the failed one alone: the scored one was kept.
        assert (folder / "asked").read_text() == asked + "rude\n"

    @pytest.mark.parametrize(
        "words",
        [
            ["-r", " "],
            ["-r", "nope"],
            ["-r", "tone", "-n", "0"],
            ["-r", "tone", "-c", "none.yaml"],
            ["-r", "tone", "--resume"],
            ["-r", "tone", "--rubric-fn", "nowhere:f"],
        ],
    )
    def test_refused_before_anything_is_spent(self, folder: Path, words: list[str]) -> None:
        assert run(folder, "eval-rubric", "-d", "data.jsonl", *words) in (1, 2)
        assert not list(folder.rglob("rollouts.jsonl"))

    def test_rubric_on_the_command_line(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (folder / "chat.jsonl").write_text(
            '{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "kind words"}], '
            '"ground_truth": "kind"}\n'
        )
        (folder / "rubric.txt").write_text("Be kind.")
        words = ["eval", "rubric", "-d", "chat.jsonl", "-r", "@rubric.txt", "--model", "offline/judge", "-o", "r.json"]
        assert run(folder, *words) == 0
        assert data(capsys)["overall_statistics"]["average"] == 1.0
        babbling = ["eval", "rubric", "-d", "chat.jsonl", "-r", "x", "--model", "offline/echo"]
        assert run(folder, *babbling) == 1
        assert data(capsys)["overall_statistics"]["failure_count"] == 1
        assert run(folder, *words, "--score-min", "3") == 2

    def test_a_rubric_file_that_is_no_text_is_an_error_of_the_person(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (folder / "rubric.txt").write_bytes(b"\xff\xfe")
        words = ["eval", "rubric", "-d", "data.jsonl", "-r", "@rubric.txt", "--model", "offline/judge"]
        assert run(folder, *words) == 1
        assert "is not UTF-8 text" in capsys.readouterr().err

    def test_a_rubric_function_that_exits_fails_its_judgement(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (folder / "leaving.py").write_text("def f(solution_str, ground_truth, extra_info):\n    raise SystemExit(2)\n")
        words = ["eval-rubric", "-r", "tone", "-d", "data.jsonl", "-o", "r.json", "--rubric-fn", "leaving:f"]
        assert run(folder, *words) == 1
        assert "SystemExit(2)" in data(capsys)["records"][0]["runs"][0]["error"]

    def test_a_missing_key_is_said_at_once(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        words = ["eval", "rubric", "-d", "data.jsonl", "-r", "x", "--model", "cerebras/m"]
        assert run(folder, *words) == 1
        assert "CEREBRAS_API_KEY" in capsys.readouterr().err

    def test_preview(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(folder, "preview", "-p", "rubric_configs.yaml") == 0
        items = json.loads(capsys.readouterr().out)["items"]
        assert [item["label"] for item in items] == ["suites.first[0]", "suites.second[0]"]
        assert main(["preview", "-p", "rubric_configs.yaml"], environ={}, cwd=folder) == 0
        shown = capsys.readouterr().out
        assert "Loaded 2 rubric config(s)" in shown
        assert "rubric: |\n  Be kind." in shown
        assert main(["preview", "-p", "data.jsonl", "--limit", "1"], environ={}, cwd=folder) == 0
        shown = capsys.readouterr().out
        assert "Loaded 3 JSONL record(s)" in shown
        assert "kind words [/red]" in shown
        assert "... and 2 more" in shown
        (folder / "x.txt").write_text("")
        (folder / "none.yaml").write_text("a: 1\n")
        assert run(folder, "preview", "-p", "x.txt") == 1
        assert run(folder, "preview", "-p", "none.yaml") == 1


async def test_runs_are_kept_when_a_session_is_cut_off(folder: Path) -> None:
    started, hold = asyncio.Event(), asyncio.Event()

    async def function(solution_str: str, ground_truth: str | None, extra_info: dict[str, Any]) -> float:
        if solution_str == "rude":
            started.set()
            await hold.wait()
        return 0.75

    config = load_rubric_suite(folder / "rubric_configs.yaml").get("tone")
    job = RubricJob(config, load_rubric_records(folder / "data.jsonl", "tone"), concurrency=1, function=function)
    run_folder = folder / "r.run"
    task = asyncio.create_task(run_rubric(job, run_folder))
    await started.wait()
    while not judged_already(job, run_folder):  # noqa: ASYNC110 - the disk tells, not the event loop
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with (run_folder / "rollouts.jsonl").open("ab") as torn:
        torn.write(b'{"row_index": 2, "att')
    hold.set()
    kept = stored_runs(job, Journal(run_folder))
    assert [(run.record_index, run.run_index) for run in kept] == [(1, 1)]
    seen: list[int] = []
    runs = await run_rubric(job, run_folder, resume=True, on_run=lambda one: seen.append(one.record_index))
    assert seen == [3]
    assert summarise(runs)["success_count"] == 2
    report = build_report(job, runs, config_path=Path("c"), data_path=Path("d"))
    assert [len(record["runs"]) for record in report["records"]] == [1, 1]


async def test_results_of_changed_inputs_are_not_reused(folder: Path) -> None:
    suite = load_rubric_suite(folder / "rubric_configs.yaml")
    records = load_rubric_records(folder / "data.jsonl", "tone")
    job = RubricJob(suite.get("tone"), records)
    assert len(await run_rubric(job, folder / "x.run")) == 2
    assert judged_already(job, folder / "x.run") == 2
    assert judged_already(RubricJob(suite.get("facts"), records), folder / "x.run") == 0
    assert judged_already(RubricJob(suite.get("tone"), records, number=2), folder / "x.run") == 2
    changed = [replace(records[0], payload={**records[0].payload, "ground_truth": "else"}), records[1]]
    assert judged_already(RubricJob(suite.get("tone"), changed), folder / "x.run") == 1


def test_a_run_of_an_earlier_version_is_refused_in_words(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "r.runs.jsonl").write_text('{"record_index": 1, "run_index": 1}\n')
    assert run(folder, "eval-rubric", "-r", "tone", "-d", "data.jsonl", "-o", "r.json", "--resume") == 1
    assert "was written by an earlier version" in capsys.readouterr().err
    assert not (folder / "r.json").exists()


def test_a_report_keeps_what_the_judge_said_and_used(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "eval-rubric", "-r", "tone", "-d", "data.jsonl", "-o", "r.json") == 0
    report = json.loads((folder / "r.json").read_text())
    judged = report["records"][0]["runs"][0]
    assert judged["raw"]["choices"][0]["message"]["content"]
    assert judged["explanation"]
    spent = [one["usage"]["prompt_tokens"] for record in report["records"] for one in record["runs"]]
    assert report["usage"]["prompt_tokens"] == sum(spent) > 0
    assert list(judged) == [
        *("run_index", "status", "started_at", "completed_at", "duration_seconds", "score", "explanation"),
        *("preview", "error", "raw", "usage"),
    ]
