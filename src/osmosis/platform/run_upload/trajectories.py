"""Read a local run's files into rollouts; a trajectory (ours, or ATIF) that contradicts the index is refused."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
from pydantic import Field, ValidationError as PydanticError

from osmosis.base.jsonable import JsonObject
from osmosis.base.processes import reader_main
from osmosis.errors import ValidationError
from osmosis.metrics.summary import Summary, Terms
from osmosis.platform.run_upload.manifest import ANNOTATIONS, INDEX, REPORT, UploadedRun
from osmosis.platform.runs import rollouts
from osmosis.records.base import Record
from osmosis.records.protocol.messages import check_rollout_id
from osmosis.records.run.annotations import Annotation
from osmosis.records.run.report import Report
from osmosis.records.run.rollout import Category, Failure, Phase, Rollout, RolloutStatus, Score, Usage
from osmosis.records.run.rows import DerivedKeys, Key
from osmosis.records.trajectory import messages_from_trajectory

PHASES = {"grader": Phase.SCORE, "score": Phase.SCORE, "model": Phase.MODEL, "setup": Phase.SETUP}
Find = Callable[[str], Path | None]


class IndexRow(Record):
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
    index = find(INDEX)
    if index is None:
        raise ValidationError(f"the run has no {INDEX}")
    places: set[tuple[int, int]] = set()
    keys, all_keys = DerivedKeys(), set[Key]()
    with index.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = IndexRow.model_validate_json(line)
                check_rollout_id(row.rollout_id)
            except PydanticError as error:
                first = error.errors()[0]
                where = ".".join(str(part) for part in first["loc"])
                raise ValidationError(f"{INDEX} line {number}: {where}: {first['msg']}") from error
            except ValueError as error:
                raise ValidationError(f"{INDEX} line {number}: {error}") from error
            if (row.row_index, row.run_index) in places:
                message = f"{INDEX} line {number}: row {row.row_index}, run {row.run_index} is listed twice"
                raise ValidationError(message)
            places.add((row.row_index, row.run_index))
            rollout = _rollout(row, find)
            rollout.row_key = keys.of(rollout.row_key, rollout.row_index, rollout.hashes.get("row"))
            if rollout.key in all_keys:
                message = f"{INDEX} line {number}: row {rollout.row_key!r} is listed twice with different positions"
                raise ValidationError(message)
            all_keys.add(rollout.key)
            yield rollout


def _rollout(row: IndexRow, find: Find) -> Rollout:
    if not row.trajectory_filename:
        return _from_index(row, {})
    name = row.trajectory_filename.rpartition("/")[2]
    names = f"rollout_trials/{row.rollout_id}/{name}", f"trajectories/{name}"
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
    identity = (row.row_index, row.run_index, row.rollout_id)
    if (rollout.row_index, rollout.attempt, rollout.rollout_id) != identity:
        raise ValidationError(f"{name} belongs to another rollout than {INDEX} says")
    return rollout


def _from_index(row: IndexRow, document: Mapping[str, Any]) -> Rollout:
    extra = (document.get("extra") or {}).get("osmosis") or {}
    info = {"trajectory": {"extra": extra}} if extra else {}
    return Rollout(
        rollout_id=row.rollout_id,
        row_index=row.row_index,
        attempt=row.run_index,
        status=row.status,
        messages=messages_from_trajectory(document),
        scores={} if row.reward is None else {"reward": Score(name="reward", value=row.reward)},
        failure=_failure(row) if row.status is RolloutStatus.FAILED else None,
        usage=_usage(document.get("final_metrics") or {}, row.tokens),
        num_tool_calls=sum(len(step.get("tool_calls") or []) for step in document.get("steps") or ()),
        duration_ms=row.duration_ms or 0.0,
        model=(document.get("agent") or {}).get("model_name"),
        info=info,
    )


def _failure(row: IndexRow) -> Failure:
    name = row.error_type or "unknown"
    category = Category(name) if name in {category.value for category in Category} else Category.UNKNOWN
    message = f"the local run recorded {name if row.error_type else 'no reason'}"
    return Failure(phase=PHASES.get(name.partition("_")[0], Phase.AGENT), category=category, message=message)


def _usage(metrics: Mapping[str, Any], tokens: int | None) -> Usage:
    prompt, completion = metrics.get("total_prompt_tokens"), metrics.get("total_completion_tokens")
    if prompt is None and completion is None:
        return Usage(prompt_tokens=tokens or 0)
    cached, cost = metrics.get("total_cached_tokens") or 0, metrics.get("total_cost_usd")
    return Usage(prompt_tokens=prompt or 0, completion_tokens=completion or 0, cached_tokens=cached, cost_usd=cost)


def read(values: JsonObject) -> object:
    files: dict[str, str] = values["files"]

    def find(path: str) -> Path | None:
        return Path(files[path]) if path in files else None

    local = UploadedRun.model_validate(values["run"])
    evaluation = local.evaluation_config
    summary = Summary(Terms(evaluation.n, evaluation.pass_threshold))
    indexes: set[int] = set()
    spent_ms = 0.0
    with Path(values["draft"]).open("wb") as out:
        for rollout in read_all(find):
            summary.add(rollout)
            indexes.add(rollout.row_index)
            spent_ms += rollout.duration_ms
            out.write(orjson.dumps(rollouts.columns_of(rollout)) + b"\n")
    selected = local.experiment_config.dataset.selected_source_rows
    rows = sorted(set(selected) | indexes if isinstance(selected, list) else indexes)
    report = _given_report(find(REPORT)) or summary.report(rows=len(rows), duration_ms=spent_ms)
    _write_annotations(find(ANNOTATIONS), Path(values["annotations"]))
    if report.completed != summary.completed:
        raise ValidationError(f"{REPORT} describes {report.completed} rollouts, but {summary.completed} were uploaded")
    return {"rows": rows, "report": report.to_dict()}


def _write_annotations(path: Path | None, draft: Path) -> None:
    with draft.open("wb") as out, (path or draft).open("rb") as lines:
        for line in lines if path is not None else ():
            with contextlib.suppress(PydanticError):
                out.write(Annotation.model_validate_json(line).to_line())


def _given_report(path: Path | None) -> Report | None:
    if path is None:
        return None
    try:
        return Report.model_validate_json(path.read_bytes())
    except PydanticError as error:
        message = f"{REPORT} is not a report that this version can read: {error.errors()[0]['msg']}"
        raise ValidationError(message) from error


if __name__ == "__main__":
    sys.exit(reader_main(read))
