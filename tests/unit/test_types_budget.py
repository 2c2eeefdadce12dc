"""`Any` turns the type checker off where it stands, so there is a budget for it: `object`, a record or a protocol says
what a value really is, and `JsonObject` says that somebody else decides."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import osmosis

BUDGET = 8.0
"""Per 1000 lines. What is left are the signatures of user code and of vendors' libraries without types."""
_OFF = re.compile(r"# (?:type: ignore|noqa)\b(?P<rest>.*)")
_WITH_REASON = re.compile(r"(?:\[[a-z, -]+\]|: [A-Z]+[0-9]+(?:, [A-Z]+[0-9]+)*) +(?:#|-) *\w")


def test_any_is_rare() -> None:
    root = Path(str(osmosis.__file__)).parent
    lines, found = 0, Counter[str]()
    for file in root.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        lines += text.count("\n")
        uses = sum(isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(ast.parse(text)))
        found[str(file.relative_to(root))] = uses
    assert found.total() * 1000 / lines <= BUDGET, found.most_common(10)


def test_a_check_that_is_turned_off_says_what_and_why() -> None:
    root = Path(str(osmosis.__file__)).parent
    bare = []
    for file in root.rglob("*.py"):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            off = _OFF.search(line)
            if off is not None and not _WITH_REASON.match(off["rest"]):
                bare.append(f"{file.relative_to(root)}:{number}: {line.strip()}")
    assert bare == []
