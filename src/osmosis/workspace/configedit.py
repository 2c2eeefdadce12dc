"""Change values of a config and keep comments, order and layout (tomlkit)."""

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from osmosis.base.files import write_text
from osmosis.errors import ValidationError
from osmosis.records.config.check import CONFIGS, iterate_fields
from osmosis.records.config.validation import Problem
from osmosis.workspace.config_file import ConfigFile, check_file, config_error
from osmosis.workspace.layout import Workspace


def set_values(file: ConfigFile, workspace: Workspace, given: Mapping[str, str]) -> dict[str, tuple[Any, Any]]:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    before_problems = _errors(file, workspace)
    unreadable = [p for p in before_problems if p.code in ("toml-syntax", "not-utf8", "unreadable")]
    if unreadable:
        raise config_error(file, unreadable)
    changed: dict[str, tuple[Any, Any]] = {}
    before, document = tomlkit.parse(file.text).unwrap(), tomlkit.parse(file.text)
    for key, raw in given.items():
        path, takes_text = parse_key(file.kind, key)
        value = parse_value(raw, takes_text)
        old = before.get(path[0], {})
        for name in path[1:]:
            old = old.get(name) if isinstance(old, dict) else None
        try:
            if old is None and len(path) == 2:
                document = _uncomment(document, *path)
            _put(document, path, value)
        except (TOMLKitError, TypeError, AttributeError) as error:
            message = f"{file.shown}: {key} cannot be set here: {error}"
            raise ValidationError(message, hint="edit the file by hand") from None
        changed[key] = old, value
    text = tomlkit.dumps(document)
    with tempfile.TemporaryDirectory(prefix="osmosis-config-") as scratch:
        probe = ConfigFile(file.kind, Path(scratch) / file.path.name, file.shown)
        write_text(probe.path, text)
        parsed = {(p.code, p.what) for p in before_problems}
        new = [p for p in _errors(probe, workspace) if (p.code, p.what) not in parsed]
    if new:
        raise config_error(ConfigFile(file.kind, file.path, file.shown), new)
    write_text(file.path, text, mode=file.path.stat().st_mode & 0o777)
    return changed


def _uncomment(document: Any, table: str, name: str) -> Any:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    # The lines of the table up to the next one, which may be a comment, too.
    above = rf"^(\[{re.escape(table)}\].*\n(?:(?!#? ?\[).*\n)*?)"
    text, count = re.subn(rf"{above}# ?(?={re.escape(name)} *=)", r"\1", tomlkit.dumps(document), count=1, flags=re.M)
    try:
        return tomlkit.parse(text) if count else document
    except TOMLKitError:
        return document


def _put(document: Any, path: Sequence[str], value: object) -> None:
    import tomlkit

    table = document
    for name in path[:-1]:
        if name not in table:
            _add(table, name, tomlkit.table() if table is document else tomlkit.inline_table())
        table = table[name]
    if path[-1] in table:
        table[path[-1]] = value
    else:
        _add(table, path[-1], value)


def _add(table: Any, name: str, value: object) -> None:
    import tomlkit
    from tomlkit.items import Table

    keys = [key for key, _ in table.value.body if key is not None] if isinstance(table, Table) else []
    if keys:
        table.value._insert_after(keys[-1], name, tomlkit.item(value))
    else:
        table[name] = value


def _errors(file: ConfigFile, workspace: Workspace) -> list[Problem]:
    _, problems = check_file(file, workspace)
    return [p for p in problems if p.severity == "error"]


def parse_key(kind: str, key: str) -> tuple[list[str], bool]:
    """Return the path of a key, and whether its value is text; raise ValidationError with the nearest known key."""
    tables = {name: inner for name, inner, _ in iterate_fields(CONFIGS[kind])}
    keys = [f"{t}.{f}" for t, inner in tables.items() if inner is not None for f in inner.model_fields]
    path = key.split(".")
    if len(path) == 1:
        below = [k.partition(".")[2] for k in keys]
        near = [k for k in keys if k.endswith(f".{key}")] or get_close_matches(key, below, 1)
        hint = f"did you mean {near[0]}?" if near else f"write table.key, such as {keys[-1]}"
        raise ValidationError(f"{key!r} is not of the form table.key", hint=hint)
    annotation: Any = tables.get(path[0])
    for i, name in enumerate(path[1:], 1):
        if not hasattr(annotation, "model_fields"):
            break
        if name in annotation.model_fields:
            annotation = annotation.model_fields[name].annotation
        elif path[0] == "advanced" and i == 1:
            return path, False  # checked with the file: the platform may know more keys than this version
        else:
            annotation = None
    if path[0] not in tables or (annotation is None and path[0] != "env"):
        near = get_close_matches(key, keys, 1, 0.5)
        hint = f"did you mean {near[0]}?" if near else f"keys: {', '.join(keys)}"
        raise ValidationError(f"there is no key {key} in {kind}", hint=hint)
    return path, path[0] == "env" or _takes_text(annotation)


def _takes_text(annotation: Any) -> bool:
    if get_origin(annotation) is Literal:
        return all(isinstance(value, str) for value in get_args(annotation))
    if get_origin(annotation) is Annotated:
        return _takes_text(get_args(annotation)[0])
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return issubclass(annotation, str)
    inner = [part for part in get_args(annotation) if part is not type(None)]
    return get_origin(annotation) not in (list, dict) and bool(inner) and all(map(_takes_text, inner))


def parse_value(raw: str, takes_text: bool) -> Any:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    if takes_text:
        quoted = len(raw) > 1 and raw[0] == raw[-1] and raw[0] in "\"'"
        return raw[1:-1] if quoted else raw
    try:
        return tomlkit.parse(f"value = {raw}\n")["value"]
    except (TOMLKitError, ValueError):
        pass
    try:
        value = json.loads(raw)
    except ValueError:
        return raw
    if not isinstance(value, dict):
        return value
    table = tomlkit.inline_table()
    table.update(value)
    return table


def list_values(file: ConfigFile, workspace: Workspace) -> list[dict[str, Any]]:
    config, problems = check_file(file, workspace)
    if config is None:
        raise config_error(file, [p for p in problems if p.severity == "error"])
    rows = []
    for table, inner, _ in iterate_fields(type(config)):
        held = getattr(config, table)
        given = file.data.get(table) or {}
        if inner is None or held is None:
            values = dict(held or {})
        else:
            values = {name: getattr(held, name) for name in inner.model_fields} | (held.model_extra or {})
        for name, value in values.items():
            source = file.where(f"{table}.{name}") if name in given else "default"
            if value is not None or name in given:
                rows.append({"key": f"{table}.{name}", "value": value, "source": source})
            else:
                rows.append({"key": f"{table}.{name}", "value": None, "source": "not set"})
    return rows
