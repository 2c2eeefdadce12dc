"""Files are found by their names: no name is carried by more than two."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import osmosis

ROOT = Path(str(osmosis.__file__)).parent
GIVEN = {"__init__", "__main__"}
"""Names that Python gives."""


def test_no_name_is_carried_by_more_than_two_files() -> None:
    count = Counter(path.stem for path in ROOT.rglob("*.py") if path.stem not in GIVEN)
    assert sorted(name for name, files in count.items() if files > 2) == []
