import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from osmosis.cli.main import main
from osmosis.datasets.quality import find_flaws

LONG = "a train leaves the old station at noon and travels north for three hours at sixty miles an hour before it stops"


def write(path: Path, rows: Iterable[tuple[str, str]]) -> Path:
    path.write_text("".join(json.dumps({"user_prompt": q, "ground_truth": a}) + "\n" for q, a in rows))
    return path


@pytest.mark.parametrize(
    ("train", "validation", "expected"),
    [
        ([("2 + 2?", "4"), ("2 + 3?", "5")], [("7 + 7?", "14")], []),
        ([("Capital of France?", "Paris"), ("capital of france", "Paris")], [], [("duplicate", "train.jsonl", 0)]),
        ([("Capital of France?", "Paris")], [("Capital of France?", "Lyon")], [("contradiction", "train.jsonl", 0)]),
        ([("?!", "4")], [], [("empty", None, None)]),
        ([(LONG, "180")], [(f"Please: {LONG}. How far?", "180 miles")], [("overlap", "train.jsonl", 0)]),
        ([(LONG, "180"), (f"{LONG}, how far?", "180")], [], []),  # alike in one file is not leaked into another
    ],
)
def test_rows_that_mislead_are_found(
    tmp_path: Path, train: list[tuple[str, str]], validation: list[tuple[str, str]], expected: list[object]
) -> None:
    files = [write(tmp_path / "train.jsonl", train)]
    files += [write(tmp_path / "validation.jsonl", validation)] if validation else []
    assert [(flaw.kind, flaw.other_file, flaw.other_row) for flaw in find_flaws(files)] == expected


def test_a_common_template_is_no_overlap_and_a_few_shot_example_is(tmp_path: Path) -> None:
    rows = [(f"{LONG} {number}", str(number)) for number in range(40)]
    files = [write(tmp_path / "a.jsonl", rows[:20]), write(tmp_path / "b.jsonl", rows[20:])]
    assert list(find_flaws(files)) == []
    [flaw] = find_flaws([write(tmp_path / "c.jsonl", [(LONG, "180")])], {"prompt.txt": f"Example: {LONG} -> 180"})
    assert (flaw.kind, flaw.other_file, flaw.share) == ("overlap", "prompt.txt", 1.0)


def test_the_command_exits_with_1_and_names_both_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "train.jsonl", [("2 + 2?", "4"), ("2 + 2?", "5")])
    (tmp_path / "prompt.txt").write_text("Answer briefly.")
    assert main(["dataset", "check", "train.jsonl", "--prompt", "prompt.txt", "--json"]) == 1
    [row] = json.loads(capsys.readouterr().out)["items"]
    assert (row["kind"], row["at"], row["other"]) == ("contradiction", "train.jsonl:1", "train.jsonl:0")
    write(tmp_path / "good.jsonl", [("2 + 2?", "4")])
    assert main(["dataset", "check", "good.jsonl"]) == 0
    assert main(["dataset", "check", "gone.jsonl"]) == 1
