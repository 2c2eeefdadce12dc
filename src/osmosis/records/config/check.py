import json
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from osmosis.records.base import describe_fields
from osmosis.records.config.advanced import TABLES
from osmosis.records.config.optimize import OptimizeConfig
from osmosis.records.config.run_config import EvalConfig, Submittable, TrainingConfig

Config = EvalConfig | TrainingConfig
CONFIGS: dict[str, type[Config]] = {"eval": EvalConfig, "training": TrainingConfig, "optimize": OptimizeConfig}


@dataclass(frozen=True, slots=True)
class ConfigIssue:
    key: str  # `evaluation.n`, or the name of a table
    what: str
    fix: str
    code: str = "bad-value"
    near: str | None = None  # The known key that was probably meant

    def to_dict(self) -> dict[str, str]:
        near = {"key_correction": self.near} if self.near else {}
        return {"key": self.key, "message": self.what, "fix": self.fix, "code": self.code, **near}


def check_config(kind: str, data: Mapping[str, object]) -> tuple[Config | None, list[ConfigIssue]]:
    try:
        return CONFIGS[kind].model_validate(data, strict=True), []
    except ValidationError as error:
        return None, list_issues(CONFIGS[kind], error)


def find_unread_keys(config: Config) -> list[ConfigIssue]:
    issues = list(TABLES[config.kind].unread(config.advanced.model_extra))
    if not issues:
        return []
    return list_issues(type(config), ValidationError.from_exception_data(type(config).__name__, issues))


def list_issues(model: type[Submittable], error: ValidationError) -> list[ConfigIssue]:
    issues: dict[ConfigIssue, None] = {}
    for detail in error.errors(include_url=False):
        issue = _issue(model, detail)
        if detail["type"] != "literal_error" or issue.key not in {other.key for other in issues}:
            issues[issue] = None  # one of several types that a value may have is enough
    return list(issues)


def iterate_fields(model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel] | None, FieldInfo]]:
    for name, field in model.model_fields.items():
        inner = _members(field.annotation)[0]
        yield name, (inner if isinstance(inner, type) and issubclass(inner, BaseModel) else None), field


def describe_value(field: FieldInfo) -> str:
    words = []
    for kind in _members(field.annotation):
        word = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}.get(kind, "a table")
        if get_origin(kind) is list:
            word = "a list of strings"
        elif get_origin(kind) is Literal:
            choices = ", ".join(json.dumps(choice) for choice in get_args(kind))
            word = f"one of {choices}" if len(get_args(kind)) > 1 else choices
        words.append(word)
    bounds: dict[str, float] = {}
    for part in field.metadata:
        for bound in ("ge", "gt", "le", "lt", "min_length"):
            if (value := getattr(part, bound, None)) is not None:
                bounds[bound] = value
    return f"{' or '.join(words)}{_range(bounds)}"


def _range(bounds: Mapping[str, float]) -> str:
    if bounds.get("min_length"):
        return ", not empty"
    low, above, high = bounds.get("ge"), bounds.get("gt"), bounds.get("le")
    if low is not None and high is not None:
        return f" from {_number(low)} to {_number(high)}"
    if above is not None and high is not None:
        return f" above {above:g}, at most {high:g}"
    if low is not None:
        return f", {low:g} or more"
    return f" above {above:g}" if above is not None else ""


def _number(bound: float) -> str:
    return str(bound) if isinstance(bound, int) else f"{bound:g}"


def _members(annotation: object) -> list[Any]:
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [kind for each in get_args(annotation) if each is not type(None) for kind in _members(each)]
    return [annotation]


def _issue(model: type[Submittable], error: ErrorDetails) -> ConfigIssue:
    loc = [str(part) for part in error["loc"]]
    context, value = error.get("ctx", {}), error["input"]
    if "fix" in context:
        key = ".".join(part for part in (loc if loc[1:2] and loc[1].isdigit() else loc[:2]) if part != "[key]")
        return ConfigIssue(key, context["what"], context["fix"], error["type"], context["near"])
    inner = next((record for name, record, _ in iterate_fields(model) if name == loc[0]), None)
    if len(loc) == 1:
        return _of_table(model, loc[0], inner, error)
    table, name = loc[:2]
    if name.isdigit():  # a list of tables: `mix.0.rollout`
        inner = get_args(_members(model.model_fields[table].annotation)[0])[0]
        if len(loc) != 3:  # of `agents.0.model.type` the message is pydantic's
            problem = f"{_show_value(value)}: {error['msg']}"
            return ConfigIssue(".".join(loc), problem, f"look at docs/config.md, [[{table}]]")
        table, name = ".".join(loc[:2]), loc[2]
        loc = [table, name]
    deeper = _members(inner.model_fields[name].annotation)[0] if inner and name in inner.model_fields else None
    if len(loc) > 2 and isinstance(deeper, type) and issubclass(deeper, BaseModel):
        inner, table, name = deeper, f"{table}.{name}", loc[2]
    key = f"{table}.{name}"
    if inner is None:
        fix = "write text" if isinstance(value, (dict, list)) else f'{name} = "{value}"'
        return ConfigIssue(key, f"{_show_value(value)} is {_kind(value)}, expected text", fix)
    if error["type"] == "extra_forbidden":
        return _unknown_key(model, table, name, inner)
    field = inner.model_fields[name]
    if error["type"] == "missing":
        fix = "required = []" if key == "secrets.required" else _assign(name, field)
        return ConfigIssue(key, f"{name} is missing ({_about(inner, name)})", fix, "missing-key")
    return ConfigIssue(key, _describe_error(name, field, error), _assign(name, field))


def _about(table: type[BaseModel], name: str) -> str:
    return (describe_fields(table).model_fields[name].description or "").split(". ")[0].split(";")[0].rstrip(".")


def _describe_error(name: str, field: FieldInfo, error: ErrorDetails) -> str:
    value = _show_value(error["input"])
    if error["type"] == "value_error":
        return f"{value} {error['ctx']['error']}"
    if error["type"] == "string_pattern_mismatch":
        return f"{value} does not match {error['ctx']['pattern']}"
    if error["type"] == "string_too_short":
        return f"{name} is empty"
    if error["type"] == "literal_error":
        return f"{value} is not {describe_value(field)}"
    if error["type"] in ("greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number"):
        return f"{value} is out of range, expected {describe_value(field)}"
    return f"{value} is {_kind(error['input'])}, expected {describe_value(field)}"


def _of_table(model: type[Submittable], name: str, inner: type[BaseModel] | None, error: ErrorDetails) -> ConfigIssue:
    value = error["input"]
    if error["type"] == "extra_forbidden":
        tables = {table: inner for table, inner, _ in iterate_fields(model)}
        is_table = isinstance(value, (Mapping, list))
        home = next((t for t, inner in tables.items() if inner is not None and name in inner.model_fields), None)
        if home and not is_table:
            problem, fix = f"the key belongs in [{home}]", f"move it below [{home}]"
            return ConfigIssue(name, problem, fix, "unknown-key", f"{home}.{name}")
        other = next((kind for kind, config in CONFIGS.items() if is_table and name in config.model_fields), None)
        if other:
            fix = f"remove it, or move the file to configs/{other}/"
            return ConfigIssue(name, f"[{name}] belongs in {other} configs", fix, "unknown-table")
        near = next(iter(get_close_matches(name, tables, 1, 0.6)), None)
        fix = f"did you mean [{near}]?" if near else f"known tables: {', '.join(tables)}"
        return ConfigIssue(name, f"unknown {'table' if is_table else 'key'} {name}", fix, "unknown-table", near)
    if error["type"] != "missing":
        is_list = get_origin(_members(model.model_fields[name].annotation)[0]) is list
        shape, fix = ("a list of tables", f"write [[{name}]]") if is_list else ("a table", f"write [{name}]")
        return ConfigIssue(name, f"{_show_value(value)} is {_kind(value)}, expected {shape}", fix, "no-table")
    if name == "secrets":
        problem, fix = f"[secrets] is missing; every {model.kind} config needs it", "if no secret is needed"
        return ConfigIssue(name, problem, f"add [secrets] with required = [] {fix}", "missing-table")
    needed = [key for key, field in inner.model_fields.items() if field.is_required()] if inner else []
    return ConfigIssue(name, f"[{name}] is missing", f"add [{name}] with {', '.join(needed)}", "missing-table")


def _unknown_key(model: type[Submittable], table: str, key: str, inner: type[BaseModel]) -> ConfigIssue:
    homes = ((name, record) for name, record, _ in iterate_fields(model) if name != table and record is not None)
    home = next((name for name, record in homes if key in record.model_fields), None)
    near = next(iter(get_close_matches(key, inner.model_fields, 1, 0.6)), None)
    if home:
        fix, nearest = f"move it below [{home}]", f"{home}.{key}"
    elif near:
        fix, nearest = f"did you mean {near}?", f"{table}.{near}"
    else:
        fix, nearest = f"known keys: {', '.join(inner.model_fields)}", None
    return ConfigIssue(f"{table}.{key}", f"unknown key {key} in [{table}]", fix, "unknown-key", nearest)


def _assign(key: str, field: FieldInfo) -> str:
    value = field.examples[0] if field.examples else field.get_default(call_default_factory=True)
    if value is None or isinstance(value, BaseModel):
        return f"write {describe_value(field)}, or remove {key}"
    if value and isinstance(value, dict):
        return f"{key} = {{ {', '.join(f'{name} = {json.dumps(inner)}' for name, inner in value.items())} }}"
    return f"{key} = {_show_value(value).replace('e-0', 'e-')}"


def _show_value(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str) if not isinstance(value, float) else f"{value:g}"
    if _kind(value) == "a date or time":
        text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "true/false"
    if isinstance(value, Mapping):
        return "a table"
    named = {str: "text", int: "a whole number", float: "a number", list: "a list"}
    return named.get(type(value), "a date or time")
