"""Count what does not follow docs/development/glossary.md yet; no count may rise above the one in .ci/ratchet.json.

python .ci/ratchet.py            compare, exit 1 when a count rose
python .ci/ratchet.py --write    write the counts of today, once they are lower
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
LIMITS = ROOT / ".ci" / "ratchet.json"
BANNED = {
    *("said", "asked", "found", "known", "given", "made", "kept", "told", "meant", "wanted", "shown", "held", "taken"),
    *("one", "what", "who", "how", "why", "here", "there", "whole", "place"),
}
BOUNDS = {"lines": 100_000, "own imports inside functions": 50}
"""Counts that may grow with what the product can do, and how far."""
GROWING = {"files", "docstrings"}
"""Counts that are only shown."""
VAGUE_START = re.compile(r"(Of|By|What|Who|Whoever|Whatever|Which|Whether|None|Where|Whose)\b")


def names_bound(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name


def docstrings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def lazy_imports(tree: ast.AST) -> int:
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    inside = {node: None for function in functions for node in ast.walk(function) if isinstance(node, ast.ImportFrom)}
    return sum(1 for node in inside if node.level or (node.module or "").partition(".")[0] == "osmosis")


def count() -> dict[str, int]:
    counts: Counter[str] = Counter()
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        lines = text.count("\n")
        counts["lines"] += lines
        counts["files"] += 1
        counts["files under 50 lines"] += lines < 50 and path.parent.name != "versions"  # of migrations
        counts["files over 600 lines"] += lines > 600
        counts["banned identifiers"] += sum(name.strip("_").lower() in BANNED for name in names_bound(tree))
        counts["own imports inside functions"] += lazy_imports(tree)
        for docstring in docstrings(tree):
            counts["docstrings"] += 1
            counts["docstrings that begin vaguely"] += VAGUE_START.match(docstring.strip()) is not None
        counts["Any"] += sum(isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(tree))
    ruff = [sys.executable, "-m", "ruff", "check", "--select", "D401", "--statistics", "--output-format", "json"]
    statistics = json.loads(
        subprocess.run([*ruff, str(SOURCE)], capture_output=True, text=True, cwd=ROOT).stdout or "[]"
    )
    counts["docstrings that are not imperative (D401)"] = sum(entry["count"] for entry in statistics)
    return dict(sorted(counts.items()))


def main() -> int:
    counts = count()
    if "--write" in sys.argv:
        LIMITS.write_text(
            json.dumps({name: BOUNDS.get(name, number) for name, number in counts.items()}, indent=2) + "\n"
        )
        return 0
    limits: dict[str, int] = json.loads(LIMITS.read_text())
    risen = {name: number for name, number in counts.items() if name not in GROWING and number > limits.get(name, 0)}
    for name, number in risen.items():
        print(f"{name}: {number}, and at most {limits.get(name, 0)} are allowed (.ci/ratchet.json)")
    return 1 if risen else 0


if __name__ == "__main__":
    sys.exit(main())
