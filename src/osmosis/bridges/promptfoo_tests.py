"""Rows of the tests of a promptfoo config (`promptfooconfig.yaml`): each test with each prompt. A list of values makes
a test for each; the first equality or containment is the ground truth, and all assertions are in the metadata."""

import csv
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import orjson
import yaml
from jinja2 import TemplateError
from jinja2.sandbox import SandboxedEnvironment

from osmosis.base.jsonable import JsonObject
from osmosis.bridges.logs import id_of, present, read_lines, row_of
from osmosis.bridges.promptfoo import parse_prompt
from osmosis.errors import NotFound, ValidationError

TARGETS = ("equals", "contains", "icontains", "starts-with")
FILE = "file://"


def read_tests(path: Path) -> Iterator[JsonObject]:
    """Raise NotFound for a file that is named and missing, ValidationError for what only promptfoo can run."""
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(config, dict) or not config.get("prompts") or not config.get("tests"):
        raise ValidationError(f"{path} is no config of promptfoo: it has no prompts or no tests")
    default = config.get("defaultTest") or {}
    prompts = [prompt.get("raw", "") if isinstance(prompt, dict) else prompt for prompt in _as_list(config["prompts"])]
    texts = [_read_text(path.parent, prompt) for prompt in prompts]
    for test in _tests(path.parent, config["tests"]):
        written = {**(default.get("vars") or {}), **(test.get("vars") or {})}
        asserts = [*(default.get("assert") or ()), *(test.get("assert") or ())]
        for values in product(*map(_as_list, written.values())):
            variables = {name: _read_text(path.parent, value) for name, value in zip(written, values, strict=True)}
            # As in its results (`promptfoo.py`), so that rows and imported runs have the same ids.
            id = id_of(variables, asserts, option=orjson.OPT_SORT_KEYS)
            target = next((a.get("value") for a in asserts if a.get("type") in TARGETS), None)
            metadata = {"vars": variables, "description": test.get("description"), "assert": asserts}
            for number, text in enumerate(texts, 1):
                prompt = parse_prompt(_render(path, text, variables))
                yield row_of(id if number == 1 else f"{id}-{number}", prompt, target, present(metadata))


def _tests(folder: Path, tests: object) -> Iterator[JsonObject]:
    for test in _as_list(tests):
        if isinstance(test, dict):
            yield test
            continue
        file = _find(folder, str(test))
        if file.suffix in (".yaml", ".yml", ".json"):
            yield from _as_list(yaml.safe_load(file.read_text(encoding="utf-8")))
        elif file.suffix == ".jsonl":
            yield from read_lines(file)
        elif file.suffix == ".csv":
            with file.open(encoding="utf-8-sig", newline="") as lines:
                yield from map(_of_columns, csv.DictReader(lines))
        else:
            raise ValidationError(
                f"{file} makes tests by a program", hint="promptfoo eval -o results.json, then from that"
            )


def _of_columns(line: dict[str, str]) -> JsonObject:
    asserts = []
    for name, value in line.items():
        if name.startswith("__expected") and value:
            kind, separator, rest = value.partition(":")
            is_typed = bool(separator) and kind.replace("-", "").isalpha()
            asserts.append({"type": kind, "value": rest.strip()} if is_typed else {"type": "equals", "value": value})
    variables = {name: value for name, value in line.items() if not name.startswith("__")}
    return {"vars": variables, "description": line.get("__description"), **({"assert": asserts} if asserts else {})}


def _as_list(value: object) -> list[JsonObject]:
    return value if isinstance(value, list) else [value]  # type: ignore[list-item]


def _find(folder: Path, text: str) -> Path:
    file = folder / text.removeprefix(FILE)
    if not file.is_file():
        raise NotFound(f"there is no file {file}")
    return file


def _read_text(folder: Path, value: object) -> str:
    if not isinstance(value, str) or not value.startswith(FILE):
        return value  # type: ignore[return-value]
    file = _find(folder, value)
    if file.suffix in (".py", ".js", ".ts", ".mjs", ".cjs"):
        raise ValidationError(f"{file} is a program", hint="promptfoo eval -o results.json, then from that")
    return file.read_text(encoding="utf-8")


def _render(path: Path, text: str, variables: JsonObject) -> str:
    try:
        return SandboxedEnvironment().from_string(text).render(variables)
    except TemplateError as error:
        raise ValidationError(f"a prompt of {path} cannot be rendered: {error}") from error
