"""No level leaves more within reach than docs/security.md says; the table there is what the same program printed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.exposure import COLUMNS, ROWS, measure

DOCUMENT = Path(__file__).parents[3] / "docs" / "security.md"


def documented(column: str) -> set[str]:
    lines = [line.strip("|").split("|") for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if "|" in line]
    head = next(line for line in lines if line[0].strip() == "a rollout reaches ...")
    place = [cell.strip() for cell in head].index(column)
    cells = {line[0].strip(): line[place].strip() for line in lines[lines.index(head) + 2 :][: len(ROWS)]}
    return {key for key, words in ROWS.items() if cells[words] != "no"}


@pytest.mark.parametrize("column", COLUMNS)
def test_a_level_leaves_no_more_within_reach_than_the_table_says(
    column: str, need_level: Callable[..., None], tmp_path: Path
) -> None:
    level = COLUMNS[column]
    need_level(level)
    reached = measure(column, tmp_path)
    assert reached <= documented(column)
    if not level:
        assert len(reached) > len(ROWS) / 2, "the program tries what works without a boundary"
