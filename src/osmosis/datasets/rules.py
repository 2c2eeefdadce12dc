import json
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import orjson

from osmosis.records.run.rows import MIN_ROWS

NAMED = ("system_prompt", "user_prompt", "ground_truth", "label", "metadata", "messages")
INT64 = range(-(2**63), 2**63)
_MANY = 256


class Severity(str, Enum):
    ERROR = "error"  # No run can use this row or file
    PLATFORM = "platform"  # Fine for a local run, which warns; a platform refuses the file
    NOTE = "note"  # Shown; nothing is refused


@dataclass(frozen=True, slots=True)
class Rule:
    code: str
    severity: Severity
    meaning: str


def _error(code: str, meaning: str) -> Rule:
    return Rule(code, Severity.ERROR, meaning)


def _platform(code: str, meaning: str) -> Rule:
    return Rule(code, Severity.PLATFORM, meaning)


NOT_JSON = _error("not_json", "a line of a .jsonl file, or a whole .json file, must be JSON")
NOT_CSV = _error("not_csv", "a .csv file is quoted as RFC 4180 says")
NOT_PARQUET = _error("not_parquet", "a .parquet file can be read")
NOT_UTF8 = _error("not_utf8", "text is UTF-8, with or without a byte order mark")
ROW_LENGTH = _error("row_length", "a line has at most 64 MiB")
ROW_TYPE = _error("row_type", "a row is an object")
ROW_DEPTH = _error("row_depth", "a row is not nested deeper than JSON can be written")
COLUMN_TWICE = _error("column_twice", "no two columns have one name, also where only case differs")
COLUMN_COUNT = _error("column_count", "every row of a .csv file has a value for each column")
METADATA_TEXT = _error("metadata_text", "metadata that is text is JSON")
NO_PROMPT = _error("no_prompt", "a row has user_prompt, messages or metadata")
USER_PROMPT = _error("user_prompt", "user_prompt is text that is not blank")
SYSTEM_PROMPT = _error("system_prompt", "system_prompt is text")
MESSAGES = _error("messages", "messages is a list of objects with a role")
GROUND_TRUTH_REQUIRED = _error("ground_truth_required", "a run that asks for it finds ground_truth in every row")

ROWS = _platform("rows", f"a file has at least {MIN_ROWS} rows")
COLUMNS = _platform("columns", "there are columns user_prompt and ground_truth (or label), or a column metadata")
SAME_COLUMNS = _platform("same_columns", "every row of a .jsonl or .json file has the columns of the first")
EMPTY_PROMPT = _platform("empty_prompt", "without a column metadata, every row has a user_prompt")
GROUND_TRUTH = _platform("ground_truth", "without a column metadata, every row has a ground_truth (or label)")
METADATA = _platform("metadata", "with a column metadata, every row has an object there that is not empty")
METADATA_EMPTY = _platform("metadata_empty", "no object inside metadata is empty")
METADATA_TYPE = _platform("metadata_type", "a value inside metadata has the same type in every row")
METADATA_INT64 = _platform("metadata_int64", "whole numbers inside metadata fit 64 bits")

ID = Rule("id", Severity.NOTE, "a column id names each row: text or a whole number, in every row, and no two alike")

RULES: dict[str, Rule] = {rule.code: rule for rule in list(globals().values()) if isinstance(rule, Rule)}


@dataclass(frozen=True, slots=True)
class RowFault:
    rule: Rule
    message: str
    key: str = ""
    ends: bool = False  # Nothing after this place can be read


def normalize_row(data: object, usual: dict[tuple[str, ...], bool]) -> object:
    """Return the row with known columns in lower case and `metadata` as an object; or a `RowFault`."""
    if not isinstance(data, dict):
        return data
    names = tuple(data)
    columns = usual.get(names)
    if columns is False:
        return data
    if columns is None:
        renamed = {key: key.strip().lower() for key in data if key not in NAMED and key.strip().lower() in NAMED}
        if renamed:
            names = tuple(renamed.get(key, key) for key in data)
            if len(set(names)) != len(names):
                return RowFault(COLUMN_TWICE, "two columns differ only in case")
            data = dict(zip(names, data.values(), strict=True))
        elif len(usual) < _MANY:
            usual[names] = "metadata" in data
    metadata = data.get("metadata")
    if metadata.__class__ is str:
        try:
            data = {**data, "metadata": orjson.loads(metadata)}
        except orjson.JSONDecodeError:
            return RowFault(METADATA_TEXT, "metadata is text that is not JSON", "metadata")
    return data


def find_error(data: object, require_ground_truth: bool = False) -> RowFault | None:
    if isinstance(data, RowFault):
        return data
    if not isinstance(data, dict):
        return RowFault(ROW_TYPE, f"a row must be an object, not {_kind(data)}")
    prompt = data.get("user_prompt")
    if prompt is None:
        if not data.get("messages") and not isinstance(data.get("metadata"), dict):
            problem = "user_prompt is null" if "user_prompt" in data else "no user_prompt (nor messages, nor metadata)"
            return RowFault(NO_PROMPT, problem, "user_prompt")
    elif not isinstance(prompt, str) or not prompt or prompt.isspace():
        return RowFault(USER_PROMPT, "user_prompt must be non-blank text", "user_prompt")
    system = data.get("system_prompt")
    if system is not None and not isinstance(system, str):
        return RowFault(SYSTEM_PROMPT, "system_prompt must be text", "system_prompt")
    messages = data.get("messages")
    if messages is not None and not (
        isinstance(messages, list) and all(isinstance(m, dict) and m.get("role") for m in messages)
    ):
        return RowFault(MESSAGES, "messages must be a list of objects with a role", "messages")
    if require_ground_truth and _blank(data.get("ground_truth", data.get("label"))):
        return RowFault(GROUND_TRUTH_REQUIRED, "no ground_truth", "ground_truth")
    return None


class PlatformRules:
    def __init__(self, columns: Sequence[str], *, same_columns: bool) -> None:
        """With `same_columns` every row must name the same columns."""
        self.columns = frozenset(columns)
        self._in_order = tuple(columns)
        self.faults: list[RowFault] = []
        self._same_columns = same_columns
        self._metadata = "metadata" in self.columns
        self._truth = "ground_truth" if "ground_truth" in self.columns else "label"
        self._kinds: dict[str, str] = {}
        self._shapes: set[Hashable] = set()
        if not self._metadata:
            for key, names in (("user_prompt", {"user_prompt"}), ("ground_truth", {"ground_truth", "label"})):
                if not self.columns & names:
                    missing = " or ".join(repr(name) for name in sorted(names))
                    message = f"no column {missing} (and no column 'metadata')"
                    self.faults.append(RowFault(COLUMNS, message, key))

    def faults_of(self, data: dict[str, object], line: bytes | None = None) -> Sequence[RowFault]:
        """Return the broken rules of a row without errors. `line` is its text in a .jsonl file."""
        if self.faults:
            return ()
        if self._same_columns and tuple(data) != self._in_order and data.keys() != self.columns:
            parts = []
            if lost := sorted(self.columns - data.keys()):
                parts.append(f"lacks {', '.join(map(repr, lost))}")
            if new := sorted(data.keys() - self.columns):
                parts.append(f"adds {', '.join(map(repr, new))}")
            return (RowFault(SAME_COLUMNS, f"columns differ from the first row: {' and '.join(parts)}"),)
        if self._metadata:
            return self._in_metadata(data.get("metadata"), line)
        if data.get("user_prompt") is None:  # a blank one is an error
            return (RowFault(EMPTY_PROMPT, "no user_prompt", "user_prompt"),)
        truth = data.get(self._truth)
        if truth is None or (isinstance(truth, str) and (not truth or truth.isspace())):
            return (RowFault(GROUND_TRUTH, f"no {self._truth}", self._truth),)
        return ()

    def _in_metadata(self, value: object, line: bytes | None) -> Sequence[RowFault]:
        if not isinstance(value, dict) or not value:
            return (RowFault(METADATA, "metadata must be a non-empty object", "metadata"),)
        shape = _shape(value)
        if shape is None:
            # The fast parser makes a float of a whole number beyond 64 bits.
            value = value if line is None else _exact_metadata(line)
        elif shape in self._shapes:  # as in rows before: nearly all rows of a file look alike
            return ()
        fault = list(self._walk("metadata", value))
        if not fault and shape is not None and len(self._shapes) < _MANY:
            self._shapes.add(shape)
        return fault

    def _walk(self, path: str, value: object) -> Iterator[RowFault]:
        if value is None:
            return
        kind = _kind(value)
        shapes = self._kinds.setdefault(path, kind)
        if kind != shapes:
            yield RowFault(METADATA_TYPE, f"{path} is {kind}, but {shapes} in earlier rows", path)
        elif isinstance(value, dict):
            if not value:
                yield RowFault(METADATA_EMPTY, f"{path} is an empty object", path)
            for key, inner in value.items():
                yield from self._walk(f"{path}.{key}", inner)
        elif isinstance(value, list):
            for inner in value:
                yield from self._walk(f"{path}[]", inner)
        elif isinstance(value, int) and not isinstance(value, bool) and value not in INT64:
            yield RowFault(METADATA_INT64, f"{path} does not fit 64 bits", path)


def _blank(value: object) -> bool:
    return value is None or (isinstance(value, str) and (not value or value.isspace()))


def _shape(value: Any) -> Hashable:
    """Return the shape: equal ones keep the same rules; None where a number may not fit 64 bits."""
    keyed = value.__class__ is dict
    kinds: list[Hashable] = []
    for item in value.values() if keyed else value:
        kind: Hashable = item.__class__
        if kind is int or kind is float:
            if not -(2**63) < item < 2**63:
                return None
        elif kind is dict or kind is list:
            kind = _shape(item)
            if kind is None:
                return None
        kinds.append(kind)
    return (*value, *kinds) if keyed else frozenset(kinds)


def _exact_metadata(line: bytes) -> object:
    data = json.loads(line.decode("utf-8-sig"))
    metadata = next(value for key, value in data.items() if key.strip().lower() == "metadata")
    return json.loads(metadata) if isinstance(metadata, str) else metadata


_KINDS = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}


def _kind(value: object) -> str:
    return _KINDS.get(type(value), "null" if value is None else type(value).__name__)
