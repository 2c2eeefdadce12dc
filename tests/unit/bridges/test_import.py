"""Logs that the real packages wrote (`make bridges`) become runs whose figures are those of the log."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from osmosis.bridges import inspect_ai
from osmosis.bridges.import_run import Imported, import_run, read_logs
from osmosis.bridges.mapped import parse_mapping
from osmosis.engine.journal import Journal
from osmosis.errors import Conflict, OsmosisError, UsageError, ValidationError
from osmosis.local.run import Run
from osmosis.records.run.rollout import Rollout, RolloutStatus

LOGS = Path(__file__).parents[2] / "fixtures" / "bridges"
Import = Callable[..., list[Imported]]


@pytest.fixture
def store(tmp_path: Path) -> Import:
    def store(path: Path, format: str | None = None, **mapping: str) -> list[Imported]:
        logged = read_logs(path, format, mapping)
        return [import_run(run, tmp_path / "runs" / f"{number}", source=path) for number, run in enumerate(logged)]

    return store


def rollouts_of(run: Imported) -> dict[tuple[str, int], Rollout]:
    return {(rollout.row_key or "", rollout.attempt): rollout for rollout in Journal(run.folder).rollouts()}


@pytest.mark.parametrize(
    ("log", "format", "means"),
    [
        ("inspect_ai.eval", "inspect_ai", {"match": 4 / 6, "words.words": 4.0, "words.chars": 3.5}),
        ("verifiers", "verifiers", {"reward": 0.5}),
        ("verifiers/traces.jsonl", "verifiers", {"reward": 0.5}),
        ("lm_eval", "lm_eval", {"exact_match": 2 / 3}),
        ("deepeval.json", "deepeval", {"Exact": 0.5, "passed": 0.5}),
        ("promptfoo.json", "promptfoo", {"score": 1.0, "passed": 1.0}),
    ],
)
def test_a_log_is_recognised_and_keeps_its_figures(
    log: str, format: str, means: dict[str, float], store: Import
) -> None:
    run = store(LOGS / log)[0]
    assert run.format == format
    assert {score.name: pytest.approx(score.mean_scored) for score in run.report.scores} == means
    stored = Run.open(run.folder)
    assert stored.report == run.report
    rows = [json.loads(line) for line in (run.folder / "rows.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == list(dict.fromkeys(rollout.row_key for rollout in stored.rollouts))
    assert all(row["user_prompt"] if "user_prompt" in row else row["messages"] for row in rows)


def test_epochs_errors_tool_calls_and_unscored_samples_of_inspect_ai_stay_what_they_are(store: Import) -> None:
    (run,) = store(LOGS / "inspect_ai.eval")
    rollouts = rollouts_of(run)
    assert set(rollouts) == {(key, attempt) for key in ("two", "7", "broken", "unscored") for attempt in (0, 1)}
    broken, two, unscored = rollouts["broken", 0], rollouts["two", 1], rollouts["unscored", 0]
    assert broken.status is RolloutStatus.FAILED
    assert broken.failure is not None
    assert (broken.failure.message, broken.scores) == ("ValueError('the agent broke')", {})
    assert unscored.scores["words"].value is None, "what was not scored is no zero"
    call = two.messages[1]["tool_calls"][0]
    assert call["function"] == {"name": "add", "arguments": '{"a":1,"b":1}'}
    assert [message["role"] for message in two.messages] == ["user", "assistant", "tool", "assistant"]
    assert (two.usage.prompt_tokens, two.usage.completion_tokens, len(two.calls)) == (22, 10, 2)
    assert two.tools is not None
    assert two.scores["match"].reason == "The answer is 2"
    assert unscored.messages[0]["content"].endswith("y" * 300), "a text that the log keeps as an attachment"


def test_repeats_of_promptfoo_are_attempts_and_each_prompt_is_a_run_that_can_be_compared(store: Import) -> None:
    good, bad = store(LOGS / "promptfoo.json")
    assert [(run.report.rows, run.report.attempts, run.report.completed) for run in (good, bad)] == [(3, 2, 6)] * 2
    assert set(rollouts_of(good)) == set(rollouts_of(bad)), "the same test is the same row"
    difference = Run.open(bad.folder).compare(good.folder)
    assert (difference.lost, difference.gained) == (4, 0)
    score = next(iter(rollouts_of(bad).values())).scores["score"]
    assert score.parts == {"contains": 0.0, "short": 1.0}


def test_columns_of_any_jsonl_are_mapped(tmp_path: Path, store: Import) -> None:
    lines = [
        {"q": "1+1?", "out": {"text": "2"}, "grade": True, "who": "m"},
        {"q": "1+1?", "out": {"text": "3"}, "grade": 0.25, "who": "m"},
        {"q": "2+2?", "out": {"text": "4"}, "grade": None, "who": "m"},
    ]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    mapping = parse_mapping(["prompt=q", "answer=out.text", "score=grade", "model=who"])
    (run,) = store(tmp_path / "answers.jsonl", **mapping)
    assert (run.report.rows, run.report.attempts, run.report.skipped) == (2, 2, 1)
    assert run.report.scores[0].mean_scored == 0.625
    assert {rollout.messages[-1]["content"] for rollout in rollouts_of(run).values()} == {"2", "3", "4"}


def test_a_mapped_column_that_is_nowhere_is_refused(tmp_path: Path, store: Import) -> None:
    (tmp_path / "answers.jsonl").write_text('{"q": "1+1?", "grade": {"value": 1}}\n')
    with pytest.raises(UsageError, match="no column 'points'"):
        store(tmp_path / "answers.jsonl", prompt="q", score="points")
    (run,) = store(tmp_path / "answers.jsonl", prompt="q", score="grade.value")
    assert run.report.scores[0].mean == 1.0


def test_trials_of_harbor_and_traces_of_langfuse_are_read(tmp_path: Path, store: Import) -> None:
    steps = [{"step_id": 1, "source": "user", "message": "do it"}]
    call = {"tool_call_id": "c", "function_name": "run", "arguments": {"command": "ls"}}
    result = {"results": [{"source_call_id": "c", "content": "a.txt"}]}
    usage = {"prompt_tokens": 5, "completion_tokens": 2}
    agent_step = {
        "step_id": 2,
        "source": "agent",
        "message": "ok",
        "tool_calls": [call],
        "observation": result,
        "metrics": usage,
    }
    for version, trial, reward in (("1.5", "sums__a", 1.0), ("1.8", "sums__b", 0.0)):
        folder = tmp_path / "job" / trial
        (folder / "agent").mkdir(parents=True)
        (folder / "verifier").mkdir()
        (folder / "verifier" / "reward.txt").write_text(f"{reward}\n")
        document = {
            "schema_version": f"ATIF-v{version}",
            "session_id": trial,
            "agent": {"name": "x"},
            "steps": [*steps, agent_step],
        }
        (folder / "agent" / "trajectory.json").write_text(json.dumps(document))
        (folder / "result.json").write_text(json.dumps({"task_name": "sums"}))
    (run,) = store(tmp_path / "job")
    assert (run.format, run.report.rows, run.report.attempts) == ("atif", 1, 2)
    assert sorted(rollout.scores["reward"].value or 0 for rollout in rollouts_of(run).values()) == [0.0, 1.0]
    assert [message["role"] for message in rollouts_of(run)["sums", 0].messages] == ["user", "assistant", "tool"]
    shutil.rmtree(tmp_path / "runs")
    trace = {
        "id": "t1",
        "sessionId": None,
        "latency": 0.5,
        "input": "hi",
        "output": {"role": "assistant", "content": "ho"},
    }
    trace["scores"] = [{"name": "thumbs", "value": 1, "comment": "nice"}, {"name": "label", "value": None}]
    (tmp_path / "traces.json").write_text(json.dumps([trace]))
    (run,) = store(tmp_path / "traces.json")
    (rollout,) = rollouts_of(run).values()
    assert (run.format, rollout.messages[-1]["content"], rollout.duration_ms) == ("langfuse", "ho", 500.0)
    assert list(rollout.scores) == ["thumbs"]


def test_openai_evals_records_are_read(tmp_path: Path, store: Import) -> None:
    lines = [
        {"spec": {"completion_fns": ["gpt"], "eval_name": "sums.dev.v0", "run_id": "r"}},
        {
            "sample_id": "s.0",
            "type": "sampling",
            "data": {"prompt": [{"role": "user", "content": "1+1"}], "sampled": ["2"]},
        },
        {"sample_id": "s.0", "type": "match", "data": {"correct": True, "expected": "2", "picked": "2"}},
        {"final_report": {"accuracy": 1.0}},
    ]
    (tmp_path / "record.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run,) = store(tmp_path / "record.jsonl")
    assert (run.format, run.report.scores[0].name, run.report.scores[0].mean) == ("openai_evals", "match", 1.0)


def test_a_log_that_is_still_written_has_no_header_yet(tmp_path: Path, store: Import) -> None:
    started = tmp_path / "running.eval"
    with zipfile.ZipFile(LOGS / "inspect_ai.eval") as whole, zipfile.ZipFile(started, "w") as part:
        for member in whole.infolist():
            if member.filename in ("_journal/start.json", "samples/two_epoch_1.json"):
                part.writestr(member.filename, inspect_ai.read_member(LOGS / "inspect_ai.eval", member))
    (run,) = store(started)
    assert (run.report.completed, run.report.scores[0].mean) == (1, 1.0)


@pytest.mark.parametrize(
    ("name", "content", "format"),
    [
        ("cut.eval", (LOGS / "inspect_ai.eval").read_bytes()[:20_000], None),
        (
            "damaged.eval",
            (LOGS / "inspect_ai.eval").read_bytes().replace(b"\x28\xb5\x2f\xfd", b"\x28\xb5\x2f\xfe"),
            None,
        ),
        ("other.json", b'{"evalId": 1, "results": {"results": [{"provider": "no object"}]}}', None),
        ("empty.jsonl", b"", None),
        ("text.jsonl", b"not json\n", None),
        ("list.jsonl", b"[1]\n", None),
        ("none.jsonl", b'{"a": 1}\n', None),
        ("wrong.json", b'{"testCases": 5}', None),
        ("traces.jsonl", b'{"traces": [{"id": 1}]}\n', "verifiers"),
        ("notes.txt", b"hello", None),
    ],
)
def test_what_cannot_be_read_is_refused_and_leaves_nothing(
    name: str, content: bytes, format: str | None, tmp_path: Path, store: Import
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValidationError, match=name):
        store(tmp_path / name, format)
    assert not any((tmp_path / "runs").glob("*")) or not list((tmp_path / "runs").iterdir())


def test_an_existing_run_and_a_mapping_of_nothing_are_refused(store: Import) -> None:
    store(LOGS / "lm_eval")
    with pytest.raises(Conflict):
        store(LOGS / "lm_eval")
    with pytest.raises(UsageError, match="nonsense"):
        parse_mapping(["nonsense=x"])
    with pytest.raises(OsmosisError, match="not a format"):
        read_logs(LOGS / "lm_eval", "excel")


def test_what_an_import_that_was_killed_left_is_no_part_of_the_next(tmp_path: Path, store: Import) -> None:
    left = tmp_path / "runs" / ".0.import"
    left.mkdir(parents=True)
    rollout = Rollout(rollout_id="r", row_index=9, attempt=0, row_key="left", status=RolloutStatus.SKIPPED)
    (left / "rollouts.jsonl").write_bytes(rollout.to_line())
    (run,) = store(LOGS / "lm_eval")
    assert set(rollouts_of(run)) == {("0", 0), ("1", 0), ("2", 0)}
    assert not left.exists()
