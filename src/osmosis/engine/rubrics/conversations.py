import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from osmosis.base.jsonable import JsonObject
from osmosis.errors import ValidationError


@dataclass(frozen=True)
class RubricRecord:
    index: int
    line: int
    payload: dict[str, object]
    solution: str
    rubric_id: str | None = None
    original_input: str | None = None
    ground_truth: str | None = None
    metadata: dict[str, object] | None = None
    extra_info: dict[str, object] | None = None
    score_min: float | None = None
    score_max: float | None = None

    @property
    def conversation_id(self) -> str:
        value = self.payload.get("conversation_id")
        return value if isinstance(value, str) and value else f"record[{self.index}]"

    @property
    def id(self) -> str:
        value = self.payload.get("id")
        return value if isinstance(value, str) and value else self.conversation_id

    def judge_metadata(self) -> dict[str, object] | None:
        metadata: dict[str, object] = {}
        inner = (self.extra_info or {}).get("metadata")
        if isinstance(inner, dict):
            metadata.update(inner)
        elif inner is not None:
            metadata["metadata"] = inner
        if self.metadata is not None:
            metadata["dataset_metadata"] = self.metadata
        return metadata or None

    def digest(self) -> str:
        return digest_of(self.payload)


def load_rubric_records(path: Path, rubric_id: str | None = None) -> list[RubricRecord]:
    issues: list[dict[str, object]] = []
    records: list[RubricRecord] = []
    total = 0
    for line, payload in read_json_lines(path):
        total += 1
        if rubric_id is not None and str(payload.get("rubric_id", "")).lower() != rubric_id.lower():
            continue
        problems = _record_problems(payload)
        if problems:
            issues += [{"key": key, "message": text, "where": f"{path}:{line}: {key}"} for key, text in problems]
        else:
            records.append(_record(payload, total, line))
    if issues:
        raise ValidationError(f"{issues[0]['where']}: {issues[0]['message']}", issues=issues)
    if not total:
        raise ValidationError(f"{path} is empty: it needs one JSON object per line")
    if rubric_id is not None and not records:
        raise ValidationError(f"no record in {path} has rubric_id {rubric_id!r} ({total} records of other rubrics)")
    return records


def read_json_lines(path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    for line, text in enumerate(read_text(path).splitlines(), start=1):
        if not text.strip():
            continue
        try:
            payload = json.loads(text)
        except ValueError as exc:
            raise ValidationError(f"{path}:{line}: not JSON: {exc}") from exc
        if not isinstance(payload, dict):
            raise ValidationError(f"{path}:{line}: a JSON {type(payload).__name__}, not an object")
        yield line, payload


def solution_of(payload: JsonObject) -> str | None:
    solution = payload.get("solution_str")
    if solution is None and isinstance(payload.get("messages"), list):
        for message in reversed(payload["messages"]):
            if isinstance(message, dict) and message.get("role") == "assistant" and message.get("content"):
                return str(message["content"])
    return solution if isinstance(solution, str) and solution.strip() else None


def _record_problems(payload: dict[str, object]) -> list[tuple[str, str]]:
    problems = []
    label = next((payload[k] for k in ("conversation_id", "id", "rubric_id") if payload.get(k)), "<record>")
    if solution_of(payload) is None:
        problems.append(("solution_str", f"record {label}: must be a non-empty string"))
    for key in ("score_min", "score_max"):
        if payload.get(key) is not None and not is_number(payload[key]):
            problems.append((key, f"record {label}: must be a number, got {payload[key]!r}"))
    return problems


def _record(payload: JsonObject, index: int, line: int) -> RubricRecord:
    def text(key: str) -> str | None:
        value = payload.get(key)
        return value if isinstance(value, str) and value.strip() else None

    def mapping(key: str) -> dict[str, object] | None:
        value = payload.get(key)
        return value if isinstance(value, dict) else None

    extra = mapping("extra_info")
    original_input = text("original_input") or (extra or {}).get("original_input")
    return RubricRecord(
        index=index,
        line=line,
        payload=payload,
        solution=solution_of(payload) or "",
        rubric_id=text("rubric_id"),
        original_input=original_input if isinstance(original_input, str) else None,
        ground_truth=text("ground_truth"),
        metadata=mapping("metadata"),
        extra_info=extra,
        score_min=payload.get("score_min"),
        score_max=payload.get("score_max"),
    )


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except IsADirectoryError as exc:
        raise ValidationError(f"{path} is a folder, not a file") from exc
    except UnicodeDecodeError as exc:
        raise ValidationError(f"{path} is not UTF-8 text: {exc.reason} at byte {exc.start}") from exc
    except OSError as exc:
        raise ValidationError(f"cannot read {path}: {exc.strerror or exc}") from exc


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def digest_of(data: object) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True, ensure_ascii=False, default=str).encode()).hexdigest()[:16]
