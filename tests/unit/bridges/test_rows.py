from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import uv

import osmosis
from osmosis.bridges.rows import read_source
from osmosis.datasets.row_file import write_rows
from osmosis.errors import NotFound, UsageError, ValidationError
from osmosis.sdk.foreign import PACKAGES

LOG = Path(__file__).parents[2] / "fixtures" / "bridges" / "inspect_ai.eval"


def rows_of(source: str, cwd: Path, output: Path, **mapping: str) -> list[dict[str, object]]:
    write_rows(read_source(source, cwd, size=3, seed=7, mapping=mapping), output)
    return [json.loads(line) for line in output.read_text().splitlines()]


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
