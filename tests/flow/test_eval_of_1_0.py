"""Runs that version 1.0 left behind go on working as they are: resume, regrade, report, compare, upload.

`tests/fixtures/run_1_0` holds two of them over seven rows, two of which are equal, with two attempts each: one with the
stand-in that calculates, one with the stand-in that repeats.
"""

import json
import os
import shutil
from pathlib import Path

import pytest

from osmosis.cli.main import main
from osmosis.engine.journal import Journal
from osmosis.engine.output.upload import export
from osmosis.records.run.rollout import Rollout

STORED = Path(__file__).parents[1] / "fixtures" / "run_1_0"


@pytest.fixture
def osmosis(tmp_path, capsys):
    """`osmosis("eval ...")` gives the data of `--json`, in a folder with both runs."""
    shutil.copytree(STORED, tmp_path, dirs_exist_ok=True)
    (tmp_path / ".osmosis").mkdir()
    shutil.move(tmp_path / "runs", tmp_path / ".osmosis" / "runs")
    for path in tmp_path.glob(".osmosis/runs/*/run.json"):
        path.write_text(path.read_text().replace("BASE_DIR", str(tmp_path)))
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "CI": "1"}

    def call(line, expect=0):
        code = main([*line.split(), "--json"], environ=environ, cwd=tmp_path)
        said = capsys.readouterr()
        assert code == expect, said.err
        return json.loads(said.out)["data"] if said.out else json.loads(said.err.splitlines()[-1])

    call.folder = tmp_path
    call.lines = tmp_path / ".osmosis" / "runs" / "first" / "rollouts.jsonl"
    return call


def keep(path, wanted):
    """Only these lines of a journal, as if the run had been killed; what is left of it."""
    kept = [line for line in path.read_bytes().splitlines(keepends=True) if wanted(json.loads(line))]
    path.write_bytes(b"".join(kept))
    return kept


def places(path):
    return sorted((line["row_index"], line["attempt"]) for line in map(json.loads, path.read_bytes().splitlines()))


ALL = [(row, attempt) for row in range(7) for attempt in range(2)]


def test_a_finished_run_is_taken_as_it_is(osmosis):
    before = osmosis.lines.read_bytes()
    found = osmosis("eval resume first")
    assert found["summary"]["completed_runs"] == 14
    assert osmosis.lines.read_bytes() == before


@pytest.mark.parametrize("lost", [{0, 3}, {2}, {6}, {2, 6}], ids=str)
def test_a_run_that_was_killed_runs_only_what_it_owes(osmosis, lost):
    kept = keep(osmosis.lines, lambda line: line["row_index"] not in lost)
    found = osmosis("eval resume first")
    assert found["summary"]["completed_runs"] == 14
    assert places(osmosis.lines) == ALL
    ids = {line["rollout_id"] for line in map(json.loads, osmosis.lines.read_bytes().splitlines())}
    assert {json.loads(line)["rollout_id"] for line in kept} <= ids


def test_a_row_put_in_at_the_top_costs_only_itself(osmosis):
    data = osmosis.folder / "d.jsonl"
    data.write_text('{"user_prompt": "What is 9 * 7?", "ground_truth": "63"}\n' + data.read_text())
    ids = {json.loads(line)["rollout_id"] for line in osmosis.lines.read_bytes().splitlines()}
    found = osmosis("eval resume first")
    assert (found["summary"]["completed_runs"], found["summary"]["total_rows"]) == (16, 8)
    stored = [json.loads(line) for line in osmosis.lines.read_bytes().splitlines()]
    assert len({(line["row_index"], line["attempt"]) for line in stored}) == 16
    assert sorted(line["row_index"] for line in stored if line["rollout_id"] not in ids) == [0, 0]


def test_a_dataset_that_gets_ids_is_another_dataset(osmosis):
    data = osmosis.folder / "d.jsonl"
    rows = [json.loads(line) | {"id": f"q{n}"} for n, line in enumerate(data.read_text().splitlines())]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    refused = osmosis("eval resume first", expect=1)
    assert refused["error"]["details"]["resume"]["rerun"] == 14
    assert osmosis("eval resume first --yes")["summary"]["completed_runs"] == 14
    keys = {rollout.key for rollout in Journal(osmosis.lines.parent).rollouts()}
    assert keys == {(0, f"q{n}", attempt) for n in range(7) for attempt in range(2)}


def test_report_regrade_and_compare(osmosis):
    assert osmosis("eval report first")["summary"]["completed_runs"] == 14
    found = osmosis("eval compare first second")
    assert (found["pairs"], found["rows"], found["only_a"], found["only_b"], found["rows_differ"]) == (14, 7, 0, 0, 0)
    assert osmosis("eval regrade first")["regraded"] == 14
    assert places(osmosis.lines) == ALL
    assert osmosis("eval compare first second")["pairs"] == 14


def test_an_old_run_beside_a_new_one_of_the_same_rows(osmosis):
    line = (
        "eval -m stored_agent:agent -d d.jsonl --eval-fn stored_score:exact --model offline/calculator --n 2 --name new"
    )
    assert osmosis(line)["summary"]["completed_runs"] == 14
    found = osmosis("eval compare first new")
    assert (found["pairs"], found["only_a"], found["only_b"], found["flips"]) == (14, 0, 0, [])


def test_the_files_of_an_upload_say_which_row_each_rollout_is(osmosis, tmp_path):
    folder = tmp_path / "export"
    export(Journal(osmosis.lines.parent), folder)
    made = [Rollout.model_validate_json(path.read_bytes()) for path in (folder / "trajectories").iterdir()]
    assert len({rollout.key for rollout in made}) == 14
    assert {rollout.row_key.partition("#")[0] for rollout in made} == {rollout.hashes["row"] for rollout in made}
