from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import uv

import osmosis
from osmosis.bridges.import_run import import_run, read_logs
from osmosis.bridges.rows import read_source
from osmosis.datasets.row_file import write_rows
from osmosis.errors import NotFound, OsmosisError, UsageError, ValidationError
from osmosis.records.run.annotations import Annotation
from osmosis.sdk.foreign import PACKAGES
from support.receivers import Answer, Asked, site

LOG = Path(__file__).parents[2] / "fixtures" / "bridges" / "inspect_ai.eval"


def rows_of(
    source: str, cwd: Path, output: Path, environ: Mapping[str, str] = {}, **mapping: str
) -> list[dict[str, Any]]:
    columns: list[Mapping[str, str]] = []
    lines = read_source(source, cwd, size=3, seed=7, mapping=mapping, environ=environ, approve=columns.append)
    write_rows(lines, output)
    COLUMNS[:] = columns
    return [json.loads(line) for line in output.read_text().splitlines()]


COLUMNS: list[Mapping[str, str]] = []
"""What was last mapped."""


@pytest.fixture
def hub() -> Iterator[str]:
    """An imitation of the documented `/splits` and `/rows` of the hub's server of datasets."""

    def answer(asked: Asked) -> Answer:
        address = urlsplit(asked.path)
        query = dict(parse_qsl(address.query))
        splits = [{"dataset": "org/sums", "config": "main", "split": name} for name in ("train", "test")]
        body: dict[str, Any] = {"splits": splits}
        if address.path == "/rows":
            offset, length, total = int(query["offset"]), int(query["length"]), 150
            numbers = range(offset, min(offset + length, total))
            rows = [
                {
                    "row_idx": number,
                    "row": {"question": f"{number}+1?", "answer": query["split"], "level": number},
                    "truncated_cells": ["question"] if query["dataset"] == "org/long" else [],
                }
                for number in numbers
            ]
            body = {"features": [], "rows": rows, "num_rows_total": total, "num_rows_per_page": 100}
        is_there = query["dataset"] != "org/missing" and asked.headers["authorization"] == "Bearer key"
        return 200 if is_there else 404, {}, json.dumps(body).encode()

    with site(answer) as url:
        yield url


def test_a_dataset_that_is_no_folder_comes_page_by_page_from_the_hubs_server(hub: str, tmp_path: Path) -> None:
    environ = {"OSMOSIS_DATASETS_SERVER": hub, "HF_TOKEN": "key"}
    rows = rows_of("hf:org/sums:test", tmp_path, tmp_path / "rows.jsonl", environ)
    assert len(rows) == 150
    assert rows[0] == {"id": "test-0", "user_prompt": "0+1?", "metadata": {"answer": "test", "level": 0}}
    assert rows[-1]["id"] == "test-149"
    assert rows_of("hf:org/sums", tmp_path, tmp_path / "train.jsonl", environ, target="answer")[0]["id"] == "train-0"
    assert COLUMNS == [{"prompt": "question", "target": "answer"}]
    for name, problem in {
        "org/missing": "hf download",
        "org/long": "hf download",
        "org/sums:none": "org/sums/main:test",
    }.items():
        with pytest.raises(OsmosisError) as error:
            rows_of(f"hf:{name}", tmp_path, tmp_path / "none.jsonl", environ)
        assert problem in str(error.value.hint), name


PROMPTFOO = """
prompts:
  - "Translate to {{ language }}: {{ text }}"
  - file://polite.txt
defaultTest:
  assert:
    - {type: latency, threshold: 100}
tests:
  - vars: {text: [Hello, Bye], language: French}
    assert:
      - {type: icontains, value: bonjour}
  - file://more.csv
"""


def test_tests_of_promptfoo_are_rows(tmp_path: Path) -> None:
    (tmp_path / "promptfooconfig.yaml").write_text(PROMPTFOO)
    (tmp_path / "polite.txt").write_text("Please say {{text}} in {{language}}.")
    (tmp_path / "more.csv").write_text("text,language,__expected\nYes,German,Ja\nNo,German,contains: nein\n")
    rows = rows_of("promptfooconfig.yaml", tmp_path, tmp_path / "rows.jsonl")
    assert [row["user_prompt"] for row in rows[:3]] == [
        "Translate to French: Hello",
        "Please say Hello in French.",
        "Translate to French: Bye",
    ]
    assert [row["ground_truth"] for row in rows] == ["bonjour"] * 4 + ["Ja"] * 2 + ["nein"] * 2
    assert rows[0]["metadata"]["vars"] == {"text": "Hello", "language": "French"}
    assert rows[0]["metadata"]["assert"][0] == {"type": "latency", "threshold": 100}
    results = LOG.with_name("promptfoo.json")
    (tmp_path / "real.yaml").write_text(json.dumps(json.loads(results.read_text())["config"]))
    tests = rows_of("real.yaml", tmp_path, tmp_path / "tests.jsonl")
    logged = {(row.row["id"], row.row["user_prompt"]) for run in read_logs(results) for row in run.rollouts}
    assert {(row["id"].removesuffix("-2"), row["user_prompt"]) for row in tests} == logged
    (tmp_path / "program.yaml").write_text('prompts: ["{{a}}"]\ntests: file://tests.py\n')
    (tmp_path / "tests.py").touch()
    with pytest.raises(ValidationError, match="by a program"):
        rows_of("promptfoo:program.yaml", tmp_path, tmp_path / "none.jsonl")


def _attributes(**values: object) -> list[dict[str, Any]]:
    return [
        {"key": key.replace("__", "."), "value": {"doubleValue" if isinstance(value, float) else "stringValue": value}}
        for key, value in values.items()
    ]


def test_a_trace_is_a_row_with_its_tools_answer_and_scores(tmp_path: Path) -> None:
    asked = [{"role": "user", "parts": [{"type": "text", "content": "2+2?"}]}]
    call = [{"role": "assistant", "parts": [{"type": "tool_call", "id": "c", "name": "add", "arguments": {"a": 2}}]}]
    result = [{"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "response": "4"}]}]
    answer = [{"role": "assistant", "parts": [{"type": "text", "content": "It is 4."}]}]
    spans = [
        {
            "traceId": "t1",
            "name": "chat m",
            "startTimeUnixNano": "20",
            "attributes": _attributes(
                gen_ai__input__messages=json.dumps([*asked, *call, *result]),
                gen_ai__output__messages=json.dumps(answer),
            ),
        },
        {
            "traceId": "t1",
            "name": "chat m",
            "startTimeUnixNano": "10",
            "attributes": _attributes(
                gen_ai__system_instructions=json.dumps([{"type": "text", "content": "Be brief."}]),
                gen_ai__input__messages=json.dumps(asked),
                gen_ai__output__messages=json.dumps(call),
                gen_ai__tool__definitions=json.dumps([{"type": "function", "name": "add"}]),
            ),
        },
        {
            "traceId": "t1",
            "name": "invoke_agent",
            "startTimeUnixNano": "5",
            "events": [
                {
                    "name": "gen_ai.evaluation.result",
                    "attributes": _attributes(gen_ai__evaluation__name="thumb", gen_ai__evaluation__score__value=0.0),
                }
            ],
        },
        {"traceId": "t2", "name": "GET /", "startTimeUnixNano": "1"},
    ]
    document = {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}
    (tmp_path / "traces.jsonl").write_text(json.dumps(document) + "\n")
    (row,) = rows_of("otlp:traces.jsonl", tmp_path, tmp_path / "rows.jsonl")
    assert row["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
    tools = [{"type": "function", "name": "add"}]
    assert row["metadata"] == {"tools": tools, "answer": "It is 4.", "scores": {"thumb": 0.0}}


def test_traces_of_langfuse_are_rows_with_their_scores(tmp_path: Path) -> None:
    trace = {"id": "t", "input": "2+2?", "output": "5", "htmlPath": "/t", "metadata": {"user": "a"}}
    scores = [{"name": "thumb", "value": 0, "comment": "wrong"}]
    (tmp_path / "traces.json").write_text(json.dumps([{**trace, "scores": scores}]))
    (row,) = rows_of("langfuse:traces.json", tmp_path, tmp_path / "rows.jsonl")
    assert (row["user_prompt"], row["metadata"]) == ("2+2?", {"user": "a", "scores": {"thumb": 0}})


def test_the_rows_of_a_log_are_each_written_once(tmp_path: Path) -> None:
    rows = rows_of(LOG.name, LOG.parent, tmp_path / "rows.jsonl")
    assert [row["id"] for row in rows] == ["two", "7", "broken", "unscored"]
    assert rows[0] == {"id": "two", "user_prompt": "What is 1+1?", "ground_truth": "2", "metadata": {"level": "easy"}}


def test_a_split_of_a_hub_dataset_is_mapped(tmp_path: Path) -> None:
    (tmp_path / "sums" / "data").mkdir(parents=True)
    for split, question in (("train", "1+1?"), ("test", "2+2?")):
        table = pa.table({"q": [question], "answer": ["4"], "level": [3]})
        pq.write_table(table, tmp_path / "sums" / "data" / f"{split}-00000-of-00001.parquet")
    (row,) = rows_of("hf:sums:test", tmp_path, tmp_path / "rows.jsonl", prompt="q", target="answer")
    assert (row["user_prompt"], row["ground_truth"], row["metadata"]) == ("2+2?", "4", {"level": 3})
    with pytest.raises(UsageError, match="q, answer, level"):
        rows_of("hf:sums", tmp_path, tmp_path / "none.jsonl")
    with pytest.raises(NotFound, match="test, train"):
        rows_of("hf:sums:validation", tmp_path, tmp_path / "none.jsonl")
    with pytest.raises(NotFound):
        rows_of("hf:missing", tmp_path, tmp_path / "none.jsonl")
    assert not (tmp_path / "none.jsonl").exists()
    (tmp_path / "sums" / "data" / "more.jsonl").write_text('{"q": "3+3?", "answer": "6"}\n')
    (tmp_path / "sums" / "data" / "last.csv").write_text("q,answer\n4+4?,8\n")
    for split, question in (("more", "3+3?"), ("last", "4+4?")):
        (row,) = rows_of(f"hf:sums:{split}", tmp_path, tmp_path / f"{split}.jsonl", prompt="q", target="answer")
        assert row["user_prompt"] == question
    assert COLUMNS == [{"prompt": "q", "target": "answer"}]


@pytest.mark.network
@pytest.mark.slow
def test_tasks_of_reasoning_gym_follow_their_seed_and_are_scored_as_it_scores(tmp_path: Path) -> None:
    rows = rows_of("reasoning-gym:chain_sum", tmp_path, tmp_path / "rows.jsonl")
    assert rows == rows_of("reasoning-gym:chain_sum", tmp_path, tmp_path / "again.jsonl")
    with pytest.raises(ValidationError, match="no_such_task"):
        rows_of("reasoning-gym:no_such_task", tmp_path, tmp_path / "none.jsonl")
    score = """
import json, sys
from osmosis.bridges.rows import score_reasoning
row = json.loads(sys.argv[1])
print(score_reasoning(row["ground_truth"], "", row), score_reasoning("no number", "", row))
"""
    source = str(Path(osmosis.__file__).parents[1])
    paths = [source, *(path for path in sys.path if path.endswith("site-packages"))]
    command = [uv.find_uv_bin(), "run", "--quiet", "--no-project", "--python", sys.executable]
    command += ["--with", PACKAGES["reasoning-gym"], "python", "-c", f"import sys; sys.path += {paths}\n{score}"]
    scored = subprocess.run([*command, json.dumps(rows[0])], capture_output=True, text=True, check=True)
    right, wrong = map(float, scored.stdout.split())
    assert right == 1.0
    assert wrong < 0.1


def test_a_run_is_rows_with_tools_and_the_labels_of_people(tmp_path: Path) -> None:
    imported = import_run(read_logs(LOG)[0], tmp_path / "run", source=LOG)
    note = Annotation(row_index=0, attempt=0, row_key="two", label="wrong", author="ann")
    (imported.folder / "annotations.jsonl").write_bytes(note.to_line())
    rows = rows_of("journal:run", tmp_path, tmp_path / "rows.jsonl")
    assert [row["id"] for row in rows] == ["two", "7", "broken", "unscored"]
    assert (rows[0]["user_prompt"], rows[0]["ground_truth"]) == ("What is 1+1?", "2")
    (tool,) = rows[0]["metadata"].pop("tools")
    assert (rows[0]["metadata"], tool["function"]["name"]) == ({"level": "easy", "labels": {"ann": "wrong"}}, "add")
    (imported.folder / "rows.jsonl").unlink()
    (row, *_) = rows_of("journal:run", tmp_path, tmp_path / "alone.jsonl")
    assert row["messages"][-1] == {"role": "user", "content": "What is 1+1?"}
