"""What is drawn on a pipe is what rich draws on a terminal that is wide enough, and no rich is loaded for it."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from osmosis.cli.drawing import Grid, GridColumn, Line, PlainCanvas

WORDS = ("pass@1", "0.25 to 0.75", "", "日本語", "café", "one\ntwo", "-", "a longer cell with words", "e\u0301")
TITLES = [word for word in WORDS if "\n" not in word]


def by_rich(*drawn: object) -> list[str]:
    console = Console(file=io.StringIO(), width=1000, markup=False, highlight=False, emoji=False, no_color=True)
    with console.capture() as captured:
        for one in drawn:
            console.print(one)
    return [line.rstrip() for line in captured.get().splitlines()]


def by_us(*drawn: object) -> list[str]:
    canvas = PlainCanvas(160, lambda: pytest.fail("rich was asked"))
    for one in drawn:
        canvas.print(one)
    return canvas.lines


@pytest.mark.parametrize("seed", range(40))
def test_a_table_is_the_same_on_a_pipe(seed: int) -> None:
    chosen = random.Random(seed)
    columns = [
        GridColumn(chosen.choice(TITLES), right=chosen.random() < 0.5, style="dim") for _ in range(chosen.randint(1, 4))
    ]
    table = Grid(columns, head=chosen.random() < 0.6)
    for _ in range(chosen.randint(1, 5)):
        table.add(*(chosen.choice((word, Line(word, "bold"))) for word in chosen.choices(WORDS, k=len(columns))))
    assert by_us(table) == by_rich(table)


@pytest.mark.parametrize(
    "line", [Line("x", "bold"), Line("a ", "dim") + Line("b\nc", whole=True), Line("[red]no markup[/red]"), Line()]
)
def test_a_line_is_the_same_on_a_pipe(line: Line) -> None:
    assert by_us(line) == by_rich(line)


def test_a_long_line_stays_one_line_on_a_pipe() -> None:
    words = " ".join(["word"] * 100)
    grid = Grid([GridColumn("key"), GridColumn("value")])
    grid.add("k", words)
    assert sum(words in line for line in by_us(Line(words), grid)) == 2


def test_what_is_none_of_ours_is_drawn_by_rich_where_it_belongs() -> None:
    canvas = PlainCanvas(160, lambda: Console(file=io.StringIO(), width=160, no_color=True))
    canvas.print("first")
    canvas.print(Text("second", style="bold"))
    canvas.print()
    canvas.print(Line("last"))
    assert canvas.lines == ["first", "second", "", "last"]


PROBE = """
import sys
from osmosis.cli import main
code = main(sys.argv[1:])
assert code == int({code}), code
print("rich" in sys.modules, file=sys.stderr)
"""


def run_on_a_pipe(words: Sequence[str], cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROBE.format(code=code), *words], cwd=cwd, capture_output=True, text=True, check=True
    )


def test_a_pipe_is_written_without_rich(tmp_path: Path) -> None:
    rows = [{"system_prompt": "Add.", "user_prompt": f"{n} + 2", "ground_truth": f"{n + 2}"} for n in range(4)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    checked = run_on_a_pipe(["dataset", "validate", "rows.jsonl"], tmp_path)
    assert checked.stderr.endswith("False\n")
    wrong = run_on_a_pipe(["dataset", "validate", "none.jsonl"], tmp_path, code=1)
    assert "Error" in wrong.stderr
    assert wrong.stderr.endswith("False\n")
