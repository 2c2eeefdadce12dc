"""Imports stand at the top. What is loaded inside a function brings a library that most commands do without, or is an
entry of a table whose other entries are not wanted; there are few of those, and each must earn its place."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import osmosis

BUDGET = 40


def own_imports_inside_functions(tree: ast.Module) -> Iterator[ast.ImportFrom]:
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    inside = {node: None for function in functions for node in ast.walk(function) if isinstance(node, ast.ImportFrom)}
    for node in inside:
        if node.level or (node.module or "").partition(".")[0] == "osmosis":
            yield node


def test_own_modules_are_imported_at_the_top() -> None:
    root = Path(str(osmosis.__file__)).parent
    found = Counter[str]()
    for file in root.rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        found[str(file.relative_to(root))] = sum(1 for _ in own_imports_inside_functions(tree))
    assert found.total() <= BUDGET, found.most_common(10)
