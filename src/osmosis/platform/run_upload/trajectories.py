"""From the files of a local run to rollouts: what `index.jsonl` lists, with the conversation its trajectory holds.

A trajectory is a rollout as our own clients store it, or an ATIF document as other clients write it. The index says
which rollouts there are; a trajectory that contradicts it is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field
from pydantic import ValidationError as PydanticError

from osmosis.errors import ValidationError
from osmosis.records.base import Record
from osmosis.records.keys import DerivedKeys, Key
from osmosis.records.rollout import Category, Failure, Message, Phase, Rollout, RolloutStatus, Score, Usage
from osmosis.records.wire_checks import check_rollout_id

from .manifest import INDEX, trajectory_paths

PHASES = {"grader": Phase.SCORE, "score": Phase.SCORE, "model": Phase.MODEL, "setup": Phase.SETUP}
Find = Callable[[str], Path | None]
"""Where the file with this path of the manifest lies; None when it is not part of it."""


class IndexRow(Record):
    """One line of `index.jsonl`."""

    row_index: int = Field(ge=0)
    run_index: int = Field(ge=0)
    rollout_id: str
    trajectory_filename: str | None = None
    status: RolloutStatus
    reward: float | None = None
    tokens: int | None = None
    duration_ms: float | None = None
    error_type: str | None = None


def read_all(find: Find) -> Iterator[Rollout]:
    """Every rollout of the index, each place and each key once. ValidationError names file and line."""
    index = find(INDEX)
    if index is None:
        raise ValidationError(f"the run has no {INDEX}")
    seen: set[tuple[int, int]] = set()
    keys, known = DerivedKeys(), set[Key]()
    with index.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            row = _index_row(line, number)
            if (row.row_index, row.run_index) in seen:
                raise ValidationError(
                    f"{INDEX} line {number}: row {row.row_index}, run {row.run_index} is listed twice"
                )
            seen.add((row.row_index, row.run_index))
            rollout = _rollout(row, find)
            rollout.row_key = keys.of(rollout.row_key, rollout.row_index, rollout.hashes.get("row"))
            if rollout.key in known:
                raise ValidationError(
                    f"{INDEX} line {number}: row {rollout.row_key!r} is listed twice with different positions"
                )
            known.add(rollout.key)
            yield rollout


def _index_row(line: bytes, number: int) -> IndexRow:
    try:
        row = IndexRow.model_validate_json(line)
        check_rollout_id(row.rollout_id)
    except PydanticError as error:
        found = error.errors()[0]
        where = ".".join(str(part) for part in found["loc"])
        raise ValidationError(f"{INDEX} line {number}: {where}: {found['msg']}") from error
    except ValueError as error:
        raise ValidationError(f"{INDEX} line {number}: {error}") from error
    return row


def _rollout(row: IndexRow, find: Find) -> Rollout:
    if not row.trajectory_filename:
        return _from_index(row, {})
    names = trajectory_paths(row.rollout_id, row.trajectory_filename)
    name, path = next(((name, path) for name in names if (path := find(name)) is not None), (names[-1], None))
    if path is None:
        raise ValidationError(f"{INDEX} names {name}, which is not part of the upload")
    try:
        document = json.loads(path.read_bytes())
        if not isinstance(document, dict):
            raise ValidationError(f"{name} is not a JSON object")
        if "row_index" not in document:
            return _from_index(row, document)
        rollout = Rollout.model_validate(document)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValidationError(f"{name} cannot be read: {error}") from error
    said = (row.row_index, row.run_index, row.rollout_id)
    if (rollout.row_index, rollout.attempt, rollout.rollout_id) != said:
        raise ValidationError(f"{name} belongs to another rollout than {INDEX} says")
    return rollout


def _from_index(row: IndexRow, document: Mapping[str, Any]) -> Rollout:
    """What the index says, with messages and usage of an ATIF document (none when it is empty)."""
    extra = (document.get("extra") or {}).get("osmosis") or {}
    info = {"trajectory": {"extra": extra}} if extra else {}
    return Rollout(
        rollout_id=row.rollout_id,
        row_index=row.row_index,
        attempt=row.run_index,
        status=row.status,
        messages=messages_of(document),
        scores={} if row.reward is None else {"reward": Score(name="reward", value=row.reward)},
        failure=_failure(row) if row.status is RolloutStatus.FAILED else None,
        usage=_usage(document.get("final_metrics") or {}, row.tokens),
        num_tool_calls=sum(len(step.get("tool_calls") or []) for step in _steps(document)),
        duration_ms=row.duration_ms or 0.0,
        model=(document.get("agent") or {}).get("model_name"),
        info=info,
    )


def _failure(row: IndexRow) -> Failure:
    name = row.error_type or "unknown"
    known = {category.value for category in Category}
    return Failure(
        phase=PHASES.get(name.partition("_")[0], Phase.AGENT),
        category=Category(name) if name in known else Category.UNKNOWN,
        message=f"the local run recorded {name}" if row.error_type else "the local run recorded no reason",
    )


def _usage(metrics: Mapping[str, Any], tokens: int | None) -> Usage:
    """A total alone counts as prompt tokens: its split is not known."""
    prompt, completion = metrics.get("total_prompt_tokens"), metrics.get("total_completion_tokens")
    if prompt is None and completion is None:
        return Usage(prompt_tokens=tokens or 0)
    return Usage(
        prompt_tokens=prompt or 0,
        completion_tokens=completion or 0,
        cached_tokens=metrics.get("total_cached_tokens") or 0,
        cost_usd=metrics.get("total_cost_usd"),
    )


def _steps(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(document.get("steps") or [])


def messages_of(document: Mapping[str, Any]) -> list[Message]:
    """The steps of an ATIF document as chat messages."""
    found: list[Message] = []
    for step in _steps(document):
        source, content = step.get("source"), step.get("message")
        if source != "agent":
            found.append({"role": str(source or "user"), "content": content})
            continue
        message: Message = {"role": "assistant", "content": content}
        if calls := step.get("tool_calls"):
            message["tool_calls"] = [_call(call) for call in calls]
        found.append(message)
        for result in (step.get("observation") or {}).get("results") or []:
            found.append(
                {"role": "tool", "tool_call_id": result.get("source_call_id"), "content": result.get("content")}
            )
    return found


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    arguments = call.get("arguments")
    return {
        "id": call.get("tool_call_id"),
        "type": "function",
        "function": {
            "name": call.get("function_name"),
            "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments or {}),
        },
    }
