import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from pathlib import Path

import orjson

from osmosis.base.jsonable import JsonObject
from osmosis.errors import ValidationError
from osmosis.records.run.rollout import Category, Failure, Message, Phase, Rollout, RolloutStatus, Score, Usage


@dataclass(slots=True)
class LoggedRollout:
    """One attempt at one row; storing it sets `row_index`, `row_key`, and its id and a free number where needed."""

    row: JsonObject  # With `id`, and `user_prompt` or `messages`; `ground_truth` and `metadata` where the log has them
    rollout: Rollout


@dataclass(slots=True)
class LoggedRun:
    name: str
    agent: str  # The tool and what it evaluated: `inspect_ai:arithmetic`
    model: str
    rollouts: Iterable[LoggedRollout]  # In any order; read once
    scores: list[str] = field(default_factory=list)  # Names of the scores, the primary one first
    created_at: datetime | None = None
    params: JsonObject = field(default_factory=dict)
    facts: JsonObject = field(default_factory=dict)

    @property
    def format(self) -> str:
        return self.agent.partition(":")[0]


def logged(
    row: JsonObject, messages: list[Message], scores: dict[str, Score], failure: Failure | None = None, **more: object
) -> LoggedRollout:
    """Return an attempt; without a failure and without any score, it counts in no mean."""
    status = RolloutStatus.FAILED if failure else RolloutStatus.SUCCESS if scores else RolloutStatus.SKIPPED
    fields: JsonObject = {"rollout_id": "", "row_index": 0, "attempt": 0, **more}
    return LoggedRollout(row, Rollout(**fields, status=status, messages=messages, scores=scores, failure=failure))


def head_of(path: Path) -> bytes:
    if path.suffix != ".json":
        return b""
    with path.open("rb") as file:
        return file.read(4096)


def id_of(*content: object, option: int | None = None) -> str:
    """Return an id for a row that has none, which follows from its content; `option` is of orjson."""
    return sha256(orjson.dumps(content, option=option)).hexdigest()[:16]


def usage_of(source: JsonObject, prompt: str, completion: str, cached: str = "", cost: str = "") -> Usage:
    tokens, read, written = (source.get(name) or 0 for name in (prompt, cached, completion))
    return Usage(prompt_tokens=tokens, cached_tokens=read, completion_tokens=written, cost_usd=source.get(cost))


def tool_calls(messages: Iterable[Message]) -> int:
    return sum(len(message.get("tool_calls") or ()) for message in messages)


def present(values: JsonObject) -> JsonObject:
    return {key: value for key, value in values.items() if value}


def read_json(path: Path) -> JsonObject:
    try:
        document = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise ValidationError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ValidationError(f"{path} is a JSON {type(document).__name__}, not an object")
    return document


def read_lines(path: Path) -> Iterable[JsonObject]:
    """Yield the objects of a JSONL file; raise ValidationError with the line's number for anything else."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                document = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise ValidationError(f"{path} line {number} is not JSON: {error}") from error
            if not isinstance(document, dict):
                raise ValidationError(f"{path} line {number} is not a JSON object")
            yield document


def run_name(*parts: str) -> str:
    words = [re.sub(r"[^A-Za-z0-9._]+", "-", part).strip("-._") for part in parts]
    return "-".join(word for word in words if word)[:96].rstrip("-._") or "imported"


def row_of(
    id: object, prompt: object, target: object = None, metadata: Mapping[str, object] | None = None
) -> JsonObject:
    row: JsonObject = {"id": str(id)}
    if isinstance(prompt, list):
        row["messages"] = prompt
    else:
        row["user_prompt"] = as_text(prompt)
    if target not in (None, "", []):
        row["ground_truth"] = as_text(target)
    if metadata:
        row["metadata"] = dict(metadata)
    return row


def as_text(value: object) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def conversation(prompt: object, answer: object) -> list[Message]:
    opening = list(prompt) if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
    return opening if answer is None else [*opening, {"role": "assistant", "content": as_text(answer)}]


def numeric(value: object) -> float | None:
    return float(value) if isinstance(value, (bool, int, float)) and value == value else None


def unscored(name: str, tool: str) -> Score:
    """Return the score of a scorer that gave none: it is never a zero."""
    message = f"{tool} stored no value for {name!r}"
    return Score(name=name, failure=Failure(phase=Phase.SCORE, category=Category.UNKNOWN, message=message))


def agent_failure(message: object, traceback: object = None) -> Failure:
    text = str(message) or "the log has no message"
    trace = traceback if isinstance(traceback, str) and traceback else None
    return Failure(phase=Phase.AGENT, category=Category.AGENT_ERROR, message=text, traceback=trace)


def parse_time(text: object) -> datetime | None:
    if not isinstance(text, str):
        return None
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
