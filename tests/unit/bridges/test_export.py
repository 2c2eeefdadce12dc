from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from osmosis.bridges.export_run import ExportFormat, export_run
from osmosis.bridges.import_run import import_run, read_logs
from osmosis.engine.journal import Journal
from osmosis.errors import Conflict
from osmosis.local.run import Run

LOG = Path(__file__).parents[2] / "fixtures" / "bridges" / "inspect_ai.eval"


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    (logged,) = read_logs(LOG)
    return Journal(import_run(logged, tmp_path / "stored", source=LOG).folder)


def test_a_log_of_inspect_ai_that_is_exported_and_imported_is_the_same_run(journal: Journal, tmp_path: Path) -> None:
    assert export_run(journal, "inspect", tmp_path / "log.json") == 8
    (logged,) = read_logs(tmp_path / "log.json")
    again = Journal(import_run(logged, tmp_path / "again", source=tmp_path / "log.json").folder)
    for before, after in zip(journal.in_order(), again.in_order(), strict=True):
        for key in ("row_key", "attempt", "status", "messages"):
            assert before[key] == after[key]
        values = [
            {name: score["value"] for name, score in line["scores"].items() if score.get("value") is not None}
            for line in (before, after)
        ]
        assert values[0] == values[1]
    assert Run.open(again.folder).compare(journal.folder, score="match").flips == []


def test_tables_hold_prompt_answer_scores_reasons_and_row_columns(journal: Journal, tmp_path: Path) -> None:
    for format in ("jsonl", "csv", "parquet", "huggingface"):
        export_run(journal, format, tmp_path / format)
    with (tmp_path / "csv").open() as file:
        first = next(csv.DictReader(file))
    table = pq.read_table(tmp_path / "parquet")
    assert (first["prompt"], first["expected"], first["answer"]) == ("What is 1+1?", "2", "The answer is 2")
    assert (first["match"], first["match.reason"], first["row.metadata"]) == (
        "1.0",
        "The answer is 2",
        '{"level":"easy"}',
    )
    assert set(first) == set(table.schema.names)
    assert table.num_rows == pq.read_table(tmp_path / "huggingface" / "data").num_rows == 8
    assert "data_files: data/*.parquet" in (tmp_path / "huggingface" / "README.md").read_text()
    frame = Run.open(journal.folder).to_pandas()
    assert list(frame["answer"][:2]) == ["The answer is 2"] * 2
    assert set(frame.columns) == set(first)
    lines = [json.loads(line) for line in (tmp_path / "jsonl").read_text().splitlines()]
    assert [line["row_key"] for line in lines] == list(frame["row_key"])


def test_trajectories_are_exported_in_atif_and_read_back(journal: Journal, tmp_path: Path) -> None:
    assert export_run(journal, "atif", tmp_path / "atif") == 8
    documents = [json.loads(path.read_bytes()) for path in (tmp_path / "atif").iterdir()]
    assert {document["schema_version"] for document in documents} == {"ATIF-v1.8"}
    models = pytest.importorskip("harbor.models.trajectories", reason="harbor needs Python 3.12")
    for document in documents:
        models.Trajectory.model_validate(document)


def test_atif_round_trip_keeps_rows_attempts_and_rewards(journal: Journal, tmp_path: Path) -> None:
    export_run(journal, "atif", tmp_path / "atif")
    (logged,) = read_logs(tmp_path / "atif")
    again = import_run(logged, tmp_path / "again", source=tmp_path / "atif")
    assert (again.report.rows, again.report.attempts, again.report.completed) == (4, 2, 8)
    assert again.report.scores[0].mean_scored == pytest.approx(4 / 6)


@pytest.mark.parametrize("format", ["jsonl", "atif"])
def test_what_exists_is_not_overwritten(journal: Journal, format: ExportFormat, tmp_path: Path) -> None:
    export_run(journal, format, tmp_path / "out")
    with pytest.raises(Conflict):
        export_run(journal, format, tmp_path / "out")
