"""Run by its path, with the standard library alone: what descriptions and decorated functions source texts hold.

Given `{"projects": {path: text}, "modules": {path: [text, decorators]}}`, it says `{"descriptions": {path: text},
"functions": {path: [[name, text or null]]}}`. A text that cannot be parsed is passed over; one that makes the parser
run out of memory or stack, too.
"""

from __future__ import annotations

import ast
import json
import sys

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_DESCRIPTION = 300


def description(text: str) -> str | None:
    """`project.description` of a pyproject.toml."""
    try:
        project = tomllib.loads(text).get("project")
    except (ValueError, RecursionError, MemoryError):
        return None
    said = project.get("description") if isinstance(project, dict) else None
    return said.strip()[:MAX_DESCRIPTION] or None if isinstance(said, str) else None


def decorated(source: str, wanted: list[str]) -> list[tuple[str, str | None]]:
    """Top-level functions with one of the decorators, and the first line of their docstring."""
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found = []
    for node in module.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names = {_decorator_name(d) for d in node.decorator_list}
            if names & set(wanted):
                said = ast.get_docstring(node)
                found.append((node.name, said.strip().splitlines()[0][:MAX_DESCRIPTION] if said else None))
    return found


def _decorator_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def main() -> None:
    given = json.load(sys.stdin)
    answer = {
        "descriptions": {path: found for path, text in given["projects"].items() if (found := description(text))},
        "functions": {path: decorated(text, wanted) for path, (text, wanted) in given["modules"].items()},
    }
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
