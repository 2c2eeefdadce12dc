"""Read descriptions and decorated functions from source texts. Run by its path, with the standard library alone. Reads
`{"projects": {path: text}, "modules": {path: [text, decorators]}}` and writes `{"descriptions": {path: text},
"functions": {path: [[name, text or null]]}}`. A text that cannot be parsed is skipped."""

import ast
import json
import sys

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_DESCRIPTION = 300


def description(text: str) -> str | None:
    try:
        project = tomllib.loads(text).get("project")
    except (ValueError, RecursionError, MemoryError):
        return None
    text_value = project.get("description") if isinstance(project, dict) else None
    return text_value.strip()[:MAX_DESCRIPTION] or None if isinstance(text_value, str) else None


def decorated(source: str, decorators: list[str]) -> list[tuple[str, str | None]]:
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    functions = []
    for node in module.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names = {_decorator_name(d) for d in node.decorator_list}
            if names & set(decorators):
                docstring = ast.get_docstring(node)
                first = docstring.strip().splitlines()[0][:MAX_DESCRIPTION] if docstring else None
                functions.append((node.name, first))
    return functions


def _decorator_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def main() -> None:
    texts = json.load(sys.stdin)
    answer = {
        "descriptions": {path: line for path, text in texts["projects"].items() if (line := description(text))},
        "functions": {path: decorated(text, decorators) for path, (text, decorators) in texts["modules"].items()},
    }
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
