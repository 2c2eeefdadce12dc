"""What is looked for is found by its name: one class for a name, and at most two files."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import osmosis

ROOT = Path(str(osmosis.__file__)).parent
GIVEN = {"__init__", "__main__"}
"""Names that Python gives."""
TABLES = ROOT / "platform" / "tables"
"""A table is called as the record is that it keeps."""
SAID_BY_OTHERS = {"OsmosisRolloutModel"}
"""Of the SDK: one for each agent framework."""


def test_no_name_is_carried_by_more_than_two_files() -> None:
    count = Counter(path.stem for path in ROOT.rglob("*.py") if path.stem not in GIVEN)
    assert sorted(name for name, files in count.items() if files > 2) == []


def test_a_class_is_alone_with_its_name() -> None:
    count = Counter(_classes())
    assert sorted(name for name, classes in count.items() if classes > 1 and name not in SAID_BY_OTHERS) == []


def _classes() -> Iterator[str]:
    for path in ROOT.rglob("*.py"):
        if TABLES not in path.parents:
            tree = ast.parse(path.read_text())
            yield from (one.name for one in tree.body if isinstance(one, ast.ClassDef) and one.name[0] != "_")
