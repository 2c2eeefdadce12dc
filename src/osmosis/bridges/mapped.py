"""JSON and JSONL of any tool, by a mapping of its columns; Langfuse's exported traces have a mapping of their own."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

import orjson

from osmosis.base.jsonable import JsonObject
from osmosis.bridges import logs
from osmosis.errors import UsageError, ValidationError
from osmosis.records.run.rollout import Score, Usage

NAME = "mapped"
LANGFUSE = "langfuse"
USUAL_NAMES: dict[str, tuple[str, ...]] = {
    "id": ("id", "uid", "task_id", "sample_id"),
    "prompt": ("prompt", "input", "question", "user_prompt", "query"),
    "messages": ("messages", "conversation"),
    "answer": ("answer", "output", "response", "completion", "actual_output"),
    "target": ("target", "expected", "expected_output", "ground_truth", "reference"),
    "score": ("score", "reward", "correct", "passed", "grade"),
    "reason": ("reason", "explanation", "comment"),
    "error": ("error",),
    "model": ("model",),
    "cost": ("cost", "cost_usd"),
    "seconds": ("seconds", "latency", "duration"),
}
"""The names that can be mapped, with the columns that are taken without a mapping."""
SAMPLE = 100  # Objects from the beginning in which a mapped column has to appear


def parse_mapping(pairs: Iterable[str]) -> dict[str, str]:
    """Return `{"score": "grade.value"}` of `score=grade.value`; raise UsageError."""
    mapping: dict[str, str] = {}
    for pair in pairs:
        name, separator, column = pair.partition("=")
        if not separator or not column or name not in USUAL_NAMES:
            hint = f"--map NAME=COLUMN, where NAME is one of {', '.join(USUAL_NAMES)}"
            raise UsageError(f"--map {pair!r} maps nothing", hint=hint)
        mapping[name] = column
    return mapping


def is_langfuse(path: Path) -> bool:
    first = next(iter(_read_objects(path)), {}) if path.suffix in (".json", ".jsonl") else {}
    return {"scores", "input", "output"} <= set(first) and bool(
        {"traceId", "sessionId", "htmlPath", "latency"} & set(first)
    )


def read(path: Path, mapping: Mapping[str, str], *, format: str = NAME) -> list[logs.LoggedRun]:
    first = next(iter(_read_objects(path)), None)
    if first is None:
        raise ValidationError(f"{path} has no objects")
    check_mapping(mapping, islice(_read_objects(path), SAMPLE), path)
    columns = complete_mapping(first, mapping)
    if format == NAME and "score" not in columns:
        listed = ", ".join(sorted(first))
        raise ValidationError(f"{path} has no column for the score; its columns: {listed}", hint="--map score=COLUMN")
    if "prompt" not in columns and "messages" not in columns:
        hint = "--map prompt=COLUMN, or --map messages=COLUMN"
        raise ValidationError(
            f"{path} has no column for the prompt; its columns: {', '.join(sorted(first))}", hint=hint
        )
    return [
        logs.LoggedRun(
            name=logs.run_name(path.stem),
            agent=f"{format}:{path.stem}",
            model=str(_value(first, columns.get("model")) or "unknown"),
            rollouts=_convert(path, columns),
            scores=[] if format == LANGFUSE else ["score"],
            facts={"mapping": columns},
        )
    ]


def check_mapping(mapping: Mapping[str, str], objects: Iterable[JsonObject], path: Path) -> None:
    names = {name: None for item in objects for name in item}
    for name, column in mapping.items():
        if column not in names and column.partition(".")[0] not in names:
            hint = f"--map {name}=COLUMN, one of: {', '.join(names)}"
            raise UsageError(f"{path} has no column {column!r}", hint=hint)


def complete_mapping(first: JsonObject, mapping: Mapping[str, str]) -> dict[str, str]:
    columns = {name: next((c for c in usual if c in first), None) for name, usual in USUAL_NAMES.items()}
    return {name: column for name, column in {**columns, **mapping}.items() if column}


def _read_objects(path: Path) -> Iterable[JsonObject]:
    if path.suffix != ".json":
        yield from logs.read_lines(path)
        return
    try:
        document = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise ValidationError(f"{path} is not JSON: {error}") from error
    objects = document if isinstance(document, list) else document.get("data") or [document]
    yield from (item for item in objects if isinstance(item, dict))


def _convert(path: Path, columns: Mapping[str, str]) -> Iterator[logs.LoggedRollout]:
    for line in _read_objects(path):
        values = {name: _value(line, column) for name, column in columns.items()}
        prompt = values.get("prompt") if values.get("prompt") is not None else values.get("messages")
        prompt = prompt["messages"] if isinstance(prompt, dict) and "messages" in prompt else prompt
        answer = values.get("answer")
        if isinstance(answer, dict) and "content" in answer:
            answer = answer["content"]
        is_trace = isinstance(line.get("scores"), list)
        own_id = None if is_trace else values.get("id")
        id = str(own_id) if own_id is not None else logs.id_of(prompt, values.get("target"))
        failure = logs.agent_failure(values["error"]) if values.get("error") else None
        scores = {} if failure else _scores(line, values)
        messages = values.get("messages")
        yield logs.logged(
            logs.row_of(id, prompt if prompt is not None else "", values.get("target"), line.get("metadata") or {}),
            messages if isinstance(messages, list) else logs.conversation(prompt, answer),
            scores,
            failure,
            rollout_id=str(line.get("id") or ""),
            usage=Usage(cost_usd=logs.numeric(values.get("cost"))),
            duration_ms=1000 * (logs.numeric(values.get("seconds")) or 0.0),
            model=str(values["model"]) if values.get("model") else None,
        )


def _scores(line: JsonObject, values: JsonObject) -> dict[str, Score]:
    if isinstance(line.get("scores"), list):
        named = [score for score in line["scores"] if logs.numeric(score.get("value")) is not None]
        return {score["name"]: Score(score["value"], score.get("comment"), name=score["name"]) for score in named}
    number = logs.numeric(values.get("score"))
    reason = values.get("reason")
    return {} if number is None else {"score": Score(number, None if reason is None else str(reason), name="score")}


def _value(line: JsonObject, column: str | None) -> object:
    if column is None or column in line:
        return line.get(column or "")
    value: object = line
    for part in column.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
