"""Traces of a run, at a receiver of OpenTelemetry's protocol on this machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="extra otlp")

from support.command_line import run_command
from support.eval_project import write_project
from support.trace_receiver import TraceReceiver, attributes_of


@pytest.fixture
def receiver() -> Iterator[TraceReceiver]:
    running = TraceReceiver()
    yield running
    running.shutdown()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write_project(tmp_path, agent="otlp_agent", score="otlp_score", rows=3)
    return tmp_path


FLAGS = ("-d", "d.jsonl", "--eval-fn", "otlp_score:exact", "--model", "offline/calculator", "--n", "2")
RUN = ("eval", "-m", "otlp_agent:agent", *FLAGS)


def test_each_rollout_is_one_trace_and_sending_twice_is_once(project: Path, receiver: TraceReceiver) -> None:
    receiver.refuses = 1  # is tried again
    run = run_command(*RUN, "--name", "traced", "--export", f"otlp:{receiver.url}", cwd=project)
    assert run.code == 0, run.err
    assert "were not sent" not in run.err
    live = dict(receiver.spans)
    calls = [span for span in live.values() if span.parent_span_id]
    assert (len(receiver.roots), len(calls), len({span.trace_id for span in live.values()})) == (6, 6, 6)
    assert {span.parent_span_id for span in calls} == {span.span_id for span in receiver.roots}
    attributes = attributes_of(receiver.roots[0])
    assert attributes["gen_ai.operation.name"] == "invoke_agent"
    assert attributes["gen_ai.usage.input_tokens"] > 0
    (event,) = receiver.roots[0].events
    result = attributes_of(event)
    assert event.name == "gen_ai.evaluation.result"
    assert result["gen_ai.evaluation.name"] == "otlp_score:exact"
    assert result["gen_ai.evaluation.score.value"] in (0.0, 1.0)
    assert not any("messages" in key for key in attributes)

    words = ("eval", "export", "traced", "--format", "otlp", "--url", receiver.url)
    again = run_command(*words, cwd=project)
    assert again.code == 0, again.err
    assert "6 rollouts sent" in again.out + again.err
    assert len(receiver.paths) > 2
    assert receiver.spans == live
    assert run_command(*words, "--content", cwd=project).code == 0
    attributes = attributes_of(receiver.roots[0])
    assert '"role":"user","parts":[{"type":"text"' in attributes["gen_ai.input.messages"]
    assert '"role":"assistant"' in attributes["gen_ai.output.messages"]


def test_a_resumed_run_is_exported_as_before(project: Path, receiver: TraceReceiver) -> None:
    run = run_command(*RUN, "--limit", "1", "--name", "half", "--export", f"otlp:{receiver.url}", cwd=project)
    assert (run.code, len(receiver.roots)) == (0, 2), run.err
    resumed = run_command("eval", "resume", "half", "--set", "selection.limit=3", cwd=project)
    assert (resumed.code, len(receiver.roots)) == (0, 6), resumed.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--format", "otlp", "-o", "x"), "--output and --format otlp cannot be used together"),
        (("--format", "otlp", "--overwrite"), "--overwrite and --format otlp cannot be used together"),
        (("--format", "csv", "--url", "http://127.0.0.1:9"), "--url and --format csv cannot be used together"),
        (("--format", "csv", "--content"), "--content and --format csv cannot be used together"),
    ],
)
def test_a_flag_of_another_format_is_refused(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    refused = run_command("eval", "export", "traced", *words, cwd=tmp_path)
    assert (refused.code, said in refused.err) == (2, True), refused.err


@pytest.mark.slow
def test_a_receiver_that_is_not_there_costs_one_warning(project: Path) -> None:
    words = (*RUN, "--name", "lost", "--export", "otlp:http://127.0.0.1:9")
    run = run_command(*words, cwd=project)
    assert run.code == 0, run.err
    assert run.err.count("6 of 6 rollouts were not sent") == 1
    assert "osmosis eval export lost --format otlp --url http://127.0.0.1:9" in run.err
    wrong = run_command(*words[:-1], "jaeger:x", cwd=project)
    assert "--export: jaeger:x names no tool to export to" in wrong.err


def test_a_missing_library_is_named_before_anything_runs(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    run = run_command(*RUN, "--name", "never", "--export", "weave:team/project", cwd=project)
    assert run.code != 0
    assert "what weave needs is not installed" in run.err
    assert "opentelemetry-exporter-otlp-proto-http" in run.err
    assert not (project / ".osmosis" / "runs" / "never").exists()
