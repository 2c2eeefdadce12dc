"""The Python files of a rollout that cannot be compiled: found by reading, without running or importing anything."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from pathlib import Path

from osmosis.records.problem import Problem

SKIPPED = {".venv", "__pycache__", ".git", "node_modules"}
MOST_FILES = 300
MOST_BYTES = 1_000_000


def syntax_errors(root: Path, rollout: str) -> Iterator[Problem]:
    """One problem for each file under `rollouts/<rollout>` that Python refuses, with its line."""
    folder = root / "rollouts" / rollout
    files = sorted(path for path in folder.rglob("*.py") if not SKIPPED & set(path.relative_to(folder).parts))
    for path in files[:MOST_FILES]:
        if (problem := _refused(path, path.relative_to(root).as_posix())) is not None:
            yield problem


def _refused(path: Path, shown: str) -> Problem | None:
    try:
        if path.stat().st_size > MOST_BYTES:
            return None
        source = path.read_bytes()
    except OSError:
        return None  # a dangling link: git says more about it
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the person's own code, which is run elsewhere
            ast.parse(source, filename=shown)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = error.lineno if isinstance(error, SyntaxError) else None
        said = error.msg if isinstance(error, SyntaxError) else str(error) or type(error).__name__
        where = f"{shown}:{line}" if line else shown
        return Problem(code="syntax", what=f"Python cannot read it: {said}", where=where, fix=f"correct {where}")
    return None
