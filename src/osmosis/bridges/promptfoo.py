"""Results of promptfoo (`promptfoo eval -o results.json`, result version 3): each prompt with each provider is a run.
Read: variables, assertions as parts of the score, named scores, repeats as attempts, usage, cost, errors. Rows of the
tests of its config: each test with each prompt; a list of values makes a test for each, the first equality or
containment is the ground truth, and all assertions are in the metadata."""

import csv
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import orjson
import yaml
from jinja2 import TemplateError
from jinja2.sandbox import SandboxedEnvironment

from osmosis.base.jsonable import JsonObject
from osmosis.bridges import logs
from osmosis.errors import NotFound, ValidationError
from osmosis.records.run.rollout import Score

NAME = "promptfoo"
ERROR = 2  # `failureReason` of a call that failed; 1 is a failed assertion
TARGETS = ("equals", "contains", "icontains", "starts-with")
FILE = "file://"


def is_log(path: Path) -> bool:
    head = logs.head_of(path)
    return b'"evalId"' in head and b'"results"' in head


def read(path: Path) -> list[logs.LoggedRun]:
    document = logs.read_json(path)
    outer = document.get("results") or {}
    results = outer.get("results") if isinstance(outer, dict) else None
    if not isinstance(results, list) or not results:
        raise ValidationError(f"{path} has no results of promptfoo")
    arms: dict[tuple[int, str], list[JsonObject]] = {}
    for result in results:
        arms.setdefault((result.get("promptIdx", 0), result["provider"]["id"]), []).append(result)
    title = str((document.get("config") or {}).get("description") or path.stem)
    several = len({index for index, _ in arms}) > 1
    return [
        logs.LoggedRun(
            name=logs.run_name(title, provider.rpartition(":")[2], f"prompt-{index + 1}" if several else ""),
            agent=f"{NAME}:{title}",
            model=provider,
            rollouts=_convert(arm),
            scores=["score", "passed"],
            created_at=logs.parse_time(outer.get("timestamp")),
            facts={
                "packages": {NAME: (document.get("metadata") or {}).get("promptfooVersion")},
                "prompt": arm[0]["prompt"].get("label"),
            },
        )
        for (index, provider), arm in sorted(arms.items())
    ]


def _convert(results: list[JsonObject]) -> Iterator[logs.LoggedRollout]:
    for result in sorted(results, key=lambda result: result.get("testIdx", 0)):
        case = result.get("testCase") or {}
        variables = result.get("vars") or case.get("vars") or {}
        # A repeat has a number of its own among the tests: what it tests is the row.
        id = logs.id_of(variables, case.get("assert"), option=orjson.OPT_SORT_KEYS)
        prompt = parse_prompt(result["prompt"].get("raw", ""))
        response, grading = result.get("response") or {}, result.get("gradingResult") or {}
        is_error = result.get("failureReason") == ERROR
        failure = logs.agent_failure(result.get("error") or response.get("error") or "") if is_error else None
        reason = grading.get("reason")
        scores = {} if failure else _scores(result, grading, reason)
        tokens = {**(response.get("tokenUsage") or {}), "cost": result.get("cost") or None}
        metadata = {"vars": variables, "description": case.get("description"), "assert": case.get("assert")}
        yield logs.logged(
            logs.row_of(id, prompt, None, logs.present(metadata)),
            logs.conversation(prompt, response.get("output")),
            scores,
            failure,
            rollout_id=result.get("id") or "",
            finish_reason=response.get("finishReason"),
            usage=logs.usage_of(tokens, "prompt", "completion", "cached", "cost"),
            duration_ms=float(result.get("latencyMs") or 0.0),
        )


def _scores(result: JsonObject, grading: JsonObject, reason: str | None) -> dict[str, Score]:
    parts: dict[str, float] = {}
    for number, component in enumerate(grading.get("componentResults") or (), 1):
        assertion = component.get("assertion") or {}
        name = assertion.get("metric") or assertion.get("type") or "assertion"
        parts[name if name not in parts else f"{name}-{number}"] = float(component.get("score") or 0.0)
    score = float(result.get("score") or 0.0)
    scores = {"score": Score(score, reason, parts=parts or None, name="score")}
    return {**scores, "passed": Score(bool(result.get("success")), reason, name="passed")}


def parse_prompt(raw: str) -> str | list[JsonObject]:
    if raw.lstrip().startswith("["):
        try:
            messages = orjson.loads(raw)
        except orjson.JSONDecodeError:
            return raw
        if isinstance(messages, list) and all(isinstance(message, dict) and "role" in message for message in messages):
            return messages
    return raw


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
            # As in its results, so that rows and imported runs have the same ids.
            id = logs.id_of(variables, asserts, option=orjson.OPT_SORT_KEYS)
            target = next((a.get("value") for a in asserts if a.get("type") in TARGETS), None)
            metadata = {"vars": variables, "description": test.get("description"), "assert": asserts}
            for number, text in enumerate(texts, 1):
                prompt = parse_prompt(_render(path, text, variables))
                yield logs.row_of(id if number == 1 else f"{id}-{number}", prompt, target, logs.present(metadata))


def _tests(folder: Path, tests: object) -> Iterator[JsonObject]:
    for test in _as_list(tests):
        if isinstance(test, dict):
            yield test
            continue
        file = _find(folder, str(test))
        if file.suffix in (".yaml", ".yml", ".json"):
            yield from _as_list(yaml.safe_load(file.read_text(encoding="utf-8")))
        elif file.suffix == ".jsonl":
            yield from logs.read_lines(file)
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
