"""Checking what a config says, all problems at once: the same code for a file, a request and a job.

Takes the tables as plain data (from TOML or JSON), gives the typed config or the list of everything wrong with it.
Knows no file and no line: `workspace.config` adds those. Types are strict, as TOML's are: `"3"` is not a number.
"""

from __future__ import annotations

import json
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Union, get_args, get_origin

import pydantic
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from .config import ENV_NAME, RESERVED_ENV, SECRET_NAME, EvalConfig, TrainingConfig

CONFIGS: dict[str, type[EvalConfig] | type[TrainingConfig]] = {"eval": EvalConfig, "training": TrainingConfig}
_NEW_SECRETS = "[secrets] with required = [{names}]"


@dataclass(frozen=True, slots=True)
class ConfigIssue:
    """One thing wrong in a config."""

    key: str
    """`evaluation.n`, or the name of a table."""
    what: str
    fix: str
    code: str = "bad-value"
    near: str | None = None
    """The known key that was probably meant."""


def check_config(kind: str, data: Mapping[str, Any]) -> tuple[EvalConfig | TrainingConfig | None, list[ConfigIssue]]:
    """The typed config, or None and every issue found."""
    model = CONFIGS[kind]
    issues = list(_tables(model, data))
    issues += _older_secrets(data)
    flagged = {i.key for i in issues}
    issues += _names(data)
    issues += _pins(data)
    if "rollout.secrets" in flagged:
        flagged.add("secrets")
    known = {name: value for name, value in data.items() if name in model.model_fields and name not in flagged}
    config: EvalConfig | TrainingConfig | None = None
    try:
        config = model.model_validate(known, strict=True)
    except pydantic.ValidationError as error:
        for found in error.errors(include_url=False):
            issue = _translate(model, kind, data, found)
            if issue is not None and not _covered(issue.key, flagged):
                issues.append(issue)
    return (None, issues) if issues else (config, [])


def fields_of(model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel] | None, FieldInfo]]:
    """Tables of a config: name, record of the table (None for `[env]`), field."""
    for name, field in model.model_fields.items():
        inner = _plain(field.annotation)
        yield name, (inner if isinstance(inner, type) and issubclass(inner, BaseModel) else None), field


def expected(field: FieldInfo) -> str:
    """What a key takes, in words: `a whole number from 1 to 1000`."""
    kind = _plain(field.annotation)
    word = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}.get(kind, "")
    if get_origin(kind) is list:
        word = "a list of texts"
    elif get_origin(kind) is dict or (isinstance(kind, type) and issubclass(kind, BaseModel)):
        word = "a table"
    bounds: dict[str, Any] = {}
    for part in field.metadata:
        for bound in ("ge", "gt", "le", "lt", "min_length"):
            if (value := getattr(part, bound, None)) is not None:
                bounds[bound] = value
    return f"{word}{_range(bounds)}"


def _range(bounds: dict[str, Any]) -> str:
    if bounds.get("min_length"):
        return ", not empty"
    low, above, high = bounds.get("ge"), bounds.get("gt"), bounds.get("le")
    if low is not None and high is not None:
        return f" from {low:g} to {high:g}"
    if above is not None and high is not None:
        return f" above {above:g}, at most {high:g}"
    if low is not None:
        return f", {low:g} or more"
    return f" above {above:g}" if above is not None else ""


def _plain(annotation: Any) -> Any:
    """The type itself: without `| None` and without `Annotated`."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return _plain(next(a for a in get_args(annotation) if a is not type(None)))
    return annotation


def _tables(model: type[BaseModel], data: Mapping[str, Any]) -> Iterator[ConfigIssue]:
    tables = {name: inner for name, inner, _ in fields_of(model)}
    for name, value in data.items():
        if name not in tables:
            if name == "rollout" and isinstance(value, Mapping) and "secrets" in value:
                continue  # said by _older_secrets
            yield _unknown_table(name, value, tables)
        elif not isinstance(value, Mapping):
            yield ConfigIssue(
                name, f"{_shown(value)} is {_kind(value)}, expected a table", f"write [{name}]", "no-table"
            )
        elif (inner := tables[name]) is not None and inner.model_config.get("extra") == "forbid":
            yield from _unknown_keys(name, inner, value, tables, model)


def _unknown_table(name: str, value: Any, tables: Mapping[str, type[BaseModel] | None]) -> ConfigIssue:
    home = next((t for t, inner in tables.items() if inner is not None and name in inner.model_fields), None)
    if home and not isinstance(value, Mapping):
        return ConfigIssue(
            name, f"the key belongs in [{home}]", f"move it below [{home}]", "unknown-key", f"{home}.{name}"
        )
    other = next((kind for kind, m in CONFIGS.items() if isinstance(value, Mapping) and name in m.model_fields), None)
    if other:
        return ConfigIssue(
            name,
            f"[{name}] belongs in {other} configs",
            f"remove it, or move the file to configs/{other}/",
            "unknown-table",
        )
    near = next(iter(get_close_matches(name, tables, 1, 0.6)), None)
    noun = "table" if isinstance(value, Mapping) else "key"
    fix = f"did you mean [{near}]?" if near else f"known tables: {', '.join(tables)}"
    return ConfigIssue(name, f"unknown {noun} {name}", fix, "unknown-table", near)


def _unknown_keys(
    table: str,
    inner: type[BaseModel],
    value: Mapping[str, Any],
    tables: Mapping[str, type[BaseModel] | None],
    model: type[BaseModel],
) -> Iterator[ConfigIssue]:
    for key, held in value.items():
        if key in inner.model_fields or (table == "secrets" and isinstance(held, str)):
            continue
        path = f"{table}.{key}"
        home = next((t for t, m in tables.items() if t != table and m is not None and key in m.model_fields), None)
        near = next(iter(get_close_matches(key, inner.model_fields, 1, 0.6)), None)
        if home:
            yield ConfigIssue(
                path, f"unknown key {key} in [{table}]", f"move it below [{home}]", "unknown-key", f"{home}.{key}"
            )
        elif near:
            yield ConfigIssue(
                path, f"unknown key {key} in [{table}]", f"did you mean {near}?", "unknown-key", f"{table}.{near}"
            )
        else:
            fix = f"known keys: {', '.join(inner.model_fields)}"
            yield ConfigIssue(path, f"unknown key {key} in [{table}]", fix, "unknown-key")


def _older_secrets(data: Mapping[str, Any]) -> Iterator[ConfigIssue]:
    places = {"secrets": data.get("secrets")}
    if isinstance(older := data.get("rollout"), Mapping):
        places["rollout.secrets"] = older.get("secrets")
    for place, table in places.items():
        if not isinstance(table, Mapping):
            continue
        names = [k for k, v in table.items() if isinstance(v, str) and k != "required"]
        if names:
            kept = table.get("required")
            every = [*(n for n in kept if isinstance(n, str)), *names] if isinstance(kept, list) else names
            new = _NEW_SECRETS.format(names=", ".join(f'"{n}"' for n in every))
            what = f"the older form of secrets ({names[0]} = ...) is no longer read"
            yield ConfigIssue(
                place, what, f"write {new}, and register each with: osmosis secret set NAME", "old-secrets"
            )


def _names(data: Mapping[str, Any]) -> Iterator[ConfigIssue]:
    env, secrets = data.get("env"), data.get("secrets")
    env = env if isinstance(env, Mapping) else {}
    required = secrets.get("required") if isinstance(secrets, Mapping) else None
    required = [n for n in required if isinstance(n, str)] if isinstance(required, list) else []
    for name, value in env.items():
        key = f"env.{name}"
        if name.startswith(RESERVED_ENV):
            what = f"{name} is reserved: names starting with {RESERVED_ENV} belong to the platform"
            yield ConfigIssue(key, what, "choose another name")
        elif not ENV_NAME.match(name):
            what = f"{name!r} is no variable name: capitals, digits and _, not a digit first"
            yield ConfigIssue(key, what, _renamed(name, ENV_NAME, "LOG_LEVEL"))
        if not isinstance(value, str):
            what = f"{_shown(value)} is {_kind(value)}, expected text"
            yield ConfigIssue(key, what, f'{name} = "{value}"' if not isinstance(value, (dict, list)) else "write text")
    for name in dict.fromkeys(required):
        if not SECRET_NAME.match(name):
            what = f"{name!r} is no secret name: capitals, digits and _, a letter first"
            yield ConfigIssue("secrets.required", what, _renamed(name, SECRET_NAME, "OPENAI_API_KEY"))
        if required.count(name) > 1:
            yield ConfigIssue("secrets.required", f"{name} is named twice", f"keep one {name}")
        if name in env:
            what = f"{name} is in [env] and in [secrets].required at once"
            yield ConfigIssue(f"env.{name}", what, f"remove it from [env] when {name} is secret, else from [secrets]")


def _renamed(name: str, rule: re.Pattern[str], example: str) -> str:
    better = "".join(c if c.isalnum() and c.isascii() else "_" for c in name).upper().strip("_")
    return f"rename it, for example {better if rule.match(better) else example}"


def _pins(data: Mapping[str, Any]) -> Iterator[ConfigIssue]:
    experiment = data.get("experiment")
    if isinstance(experiment, Mapping) and experiment.get("branch") and experiment.get("commit_sha"):
        yield ConfigIssue(
            "experiment.commit_sha",
            "branch and commit_sha exclude each other",
            "keep commit_sha to pin, or branch to follow",
        )


def _translate(model: type[BaseModel], kind: str, data: Mapping[str, Any], found: Any) -> ConfigIssue | None:
    """A pydantic error in our words; None for what the checks above have said."""
    loc = [str(p) for p in found["loc"]]
    if not loc or loc[0] == "env" or found["type"] == "extra_forbidden":
        return None
    inner = next((m for name, m, _ in fields_of(model) if name == loc[0]), None)
    if len(loc) == 1:
        if found["type"] == "missing":
            return _missing_table(loc[0], inner, kind)
        return None if found["type"] == "value_error" else ConfigIssue(loc[0], found["msg"], f"write [{loc[0]}]")
    key = f"{loc[0]}.{loc[1]}"
    field = inner.model_fields.get(loc[1]) if inner else None
    if field is None:
        return ConfigIssue(key, str(found["msg"]).lower(), "see: osmosis config schema " + kind)
    if found["type"] == "missing":
        from .describe import described

        assert inner is not None
        about = (described(inner).model_fields[loc[1]].description or "").split(". ")[0].split(";")[0].rstrip(".")
        fix = "required = []" if key == "secrets.required" else _assign(loc[1], field)
        return ConfigIssue(key, f"{loc[1]} is missing ({about})", fix, "missing-key")
    value = _value(data, found["loc"])
    if found["type"] == "value_error":
        if key == "secrets.required":
            return None
        said = str(found["msg"]).removeprefix("Value error, ")
        return ConfigIssue(key, f"{_shown(value)} {said}", _assign(loc[1], field))
    if found["type"] in ("greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number"):
        return ConfigIssue(key, f"{_shown(value)} is out of range, expected {expected(field)}", _assign(loc[1], field))
    if found["type"] == "string_too_short":
        return ConfigIssue(key, f"{loc[1]} is empty", _assign(loc[1], field))
    return ConfigIssue(key, f"{_shown(value)} is {_kind(value)}, expected {expected(field)}", _assign(loc[1], field))


def _missing_table(name: str, inner: type[BaseModel] | None, kind: str) -> ConfigIssue:
    if name == "secrets":
        fix = "add [secrets] with required = [] when no secret is needed"
        return ConfigIssue(name, f"[secrets] is missing, every {kind} config has one", fix, "missing-table")
    needed = [k for k, f in inner.model_fields.items() if f.is_required()] if inner else []
    return ConfigIssue(name, f"[{name}] is missing", f"add [{name}] with {', '.join(needed)}", "missing-table")


def _covered(key: str, flagged: set[str]) -> bool:
    return any(key == f or key.startswith(f + ".") for f in flagged)


def _value(data: Mapping[str, Any], loc: tuple[str | int, ...]) -> Any:
    value: Any = data
    for part in loc:
        if isinstance(value, Mapping):
            value = value.get(str(part))
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
    return value


_EXAMPLES = {
    "rollout": '"my-rollout"',
    "entrypoint": '"main.py"',
    "model_path": '"offline/calculator"',
    "dataset": '"my-dataset"',
    "branch": '"main"',
    "commit_sha": '"<7 to 40 hexadecimal digits>"',
    "limit": "20",
    "required": '["OPENAI_API_KEY"]',
    "base_url": '"http://127.0.0.1:8000/v1"',
    "api_key_env": '"OPENAI_API_KEY"',
}


def _assign(key: str, field: FieldInfo) -> str:
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    if isinstance(default, float):
        default = f"{default:g}".replace("e-0", "e-")
    return f"{key} = {_EXAMPLES.get(key, default)}"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str) if not isinstance(value, float) else f"{value:g}"
    if _kind(value) == "a date or time":
        text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true/false"
    if isinstance(value, Mapping):
        return "a table"
    named = {str: "text", int: "a whole number", float: "a number", list: "a list"}
    return named.get(type(value), "a date or time")
