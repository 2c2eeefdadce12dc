"""`osmosis judge calibrate`: what people said beside what was scored."""

from __future__ import annotations

from pathlib import Path

import pytest

from osmosis.engine.journal import AnnotationFile
from osmosis.records.run.annotations import Annotation
from osmosis.records.run.rollout import Score
from support.command_line import run_command
from support.platform_data import rollout, timeout
from support.stored_run import stored_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    made = [
        rollout(row, 0, hashes={"score": "v1"}, scores={name: Score(name=name, value=value) for name, value in given})
        for row, given in enumerate([[("kind", 1.0), ("strict", float(row < 6))] for row in range(12)])
    ]
    made.append(rollout(12, 0, failure=timeout()))
    return stored_run(tmp_path / ".osmosis" / "runs" / "nightly", made, rows=13, attempts=1).folder


def label(run: Path, row: int, said: str, **more: object) -> None:
    one = {"row_index": row, "attempt": 0, "label": said, "author": "ada", "rollout_id": f"r-{row}-0", **more}
    AnnotationFile(run).add(Annotation.model_validate(one))


def test_each_score_is_compared_with_people(run: Path, tmp_path: Path) -> None:
    for row in range(12):
        label(run, row, "right" if row < 8 else "wrong")
    label(run, 0, "unsure", author="bob")
    label(run, 1, "wrong", author="bob", rollout_id="an earlier one")
    label(run, 12, "right")
    found = {
        row["score"]: row for row in run_command("judge", "calibrate", "nightly", "--json", cwd=tmp_path).json["items"]
    }
    assert {name: (row["pairs"], row["judge_only"], row["person_only"]) for name, row in found.items()} == {
        "kind": (12, 4, 0), "strict": (12, 0, 2),
    }  # fmt: skip
    assert found["strict"]["kappa"] == pytest.approx(2 / 3)
    assert found["strict"]["bias"] == pytest.approx(-1 / 6)
    assert found["strict"]["kappa_ci"][0] < 2 / 3 < found["strict"]["kappa_ci"][1]
    assert found["kind"]["score_hashes"] == ["v1"]
    people = found["kind"]["by_people"]
    assert (people["rows"], people["labelled_rows"], people["judge"]) == (13, 13, pytest.approx(12 / 13))
    assert (people["mean"], found["kind"]["judge_mean"]) == (pytest.approx(9 / 13), pytest.approx(12 / 13))
    assert people["interval"][0] < 9 / 13 < people["interval"][1]
    shown = run_command("eval", "show", "nightly", cwd=tmp_path)
    assert "kind by people: 0.692" in shown.out
    only = run_command("judge", "calibrate", str(run), "--score", "kind", "--json", cwd=tmp_path).json["items"]
    assert [row["score"] for row in only] == ["kind"]


def test_it_says_what_is_missing(run: Path, tmp_path: Path) -> None:
    unlabelled = run_command("judge", "calibrate", "nightly", "--json", cwd=tmp_path)
    assert (unlabelled.code, "osmosis view nightly" in unlabelled.error["details"]["hint"]) == (1, True)
    label(run, 0, "right")
    odd = run_command("judge", "calibrate", "nightly", "--score", "odd", "--json", cwd=tmp_path)
    assert "kind, strict" in odd.error["details"]["hint"]
    few = run_command("judge", "calibrate", "nightly", cwd=tmp_path)
    assert "fewer than 10 rows" in few.out
