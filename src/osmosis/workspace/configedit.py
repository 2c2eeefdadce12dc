"""Changing values of a config without touching anything else: comments, order and layout survive (tomlkit).

The edited text is checked before it is written; a value that makes the config wrong leaves the file as it was.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from osmosis.base.files import write_text
from osmosis.errors import ValidationError
from osmosis.records.config import CONFIGS
from osmosis.records.config_check import fields_of
from osmosis.records.problem import Problem

from .config_file import ConfigFile, check_file, read, refused
from .layout import Workspace


def set_values(file: ConfigFile, workspace: Workspace, given: Mapping[str, str]) -> dict[str, tuple[Any, Any]]:
    """Set each `table.key` to what is given for it (TOML, or plain text for a text key), all or none; each value before
    and after.

    Raises ValidationError when the key is unknown or the file would be worse for it.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    before_problems = _errors(file, workspace)
    unreadable = [p for p in before_problems if p.code in ("toml-syntax", "not-utf8", "unreadable")]
    if unreadable:
        raise refused(file, unreadable)
    changed: dict[str, tuple[Any, Any]] = {}
    document = tomlkit.parse(file.text)
    for key, raw in given.items():
        table, name, takes_text = known_key(file.kind, key)
        value = parse_value(raw, takes_text)
        try:
            old = document.get(table, {}).get(name)
            old = old.unwrap() if hasattr(old, "unwrap") else old
            if table not in document:
                document[table] = tomlkit.table()
            document[table][name] = value
        except (TOMLKitError, TypeError, AttributeError) as error:
            raise ValidationError(
                f"{file.shown}: {key} cannot be set here: {error}", hint="edit the file by hand"
            ) from None
        changed[key] = old, value
    text = tomlkit.dumps(document)
    with tempfile.TemporaryDirectory(prefix="osmosis-config-") as scratch:
        probe = ConfigFile(file.kind, Path(scratch) / file.path.name, file.shown)
        write_text(probe.path, text)
        known = {(p.code, p.what) for p in before_problems}
        new = [p for p in _errors(probe, workspace) if (p.code, p.what) not in known]
    if new:
        raise refused(ConfigFile(file.kind, file.path, file.shown), new)
    write_text(file.path, text, mode=file.path.stat().st_mode & 0o777)
    return changed


def _errors(file: ConfigFile, workspace: Workspace) -> list[Problem]:
    _, problems = check_file(file, workspace)
    return [p for p in problems if p.severity == "error"]


def known_key(kind: str, key: str) -> tuple[str, str, bool]:
    """`table`, `name`, and whether the value is text. Raises ValidationError with the nearest known key."""
    tables = {name: inner for name, inner, _ in fields_of(CONFIGS[kind])}
    known = [f"{t}.{f}" for t, inner in tables.items() if inner is not None for f in inner.model_fields]
    table, dot, name = key.partition(".")
    if not dot:
        raise _without_table(key, known)
    inner = tables.get(table)
    if table == "env" or (table == "advanced" and inner is not None and name not in inner.model_fields):
        return table, name, table == "env"
    if inner is None or name not in inner.model_fields:
        near = get_close_matches(key, known, 1, 0.5)
        hint = f"did you mean {near[0]}?" if near else f"keys: {', '.join(known)}"
        raise ValidationError(f"there is no key {key} in {kind}", hint=hint)
    annotation = str(inner.model_fields[name].annotation)
    return table, name, "str" in annotation and "list" not in annotation


def _without_table(key: str, known: list[str]) -> ValidationError:
    owners = [k for k in known if k.endswith(f".{key}")]
    near = owners or get_close_matches(key, [k.partition(".")[2] for k in known], 1)
    hint = f"did you mean {near[0]}?" if near else f"write table.key, such as {known[-1]}"
    return ValidationError(f"{key!r} is not of the form table.key", hint=hint)


def parse_value(raw: str, takes_text: bool) -> Any:
    """`3`, `0.5`, `true`, `["A"]` as TOML; for a text key the words themselves, quoted or not."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    if takes_text:
        quoted = len(raw) > 1 and raw[0] == raw[-1] and raw[0] in "\"'"
        return raw[1:-1] if quoted else raw
    try:
        value = tomlkit.parse(f"value = {raw}\n")["value"]
    except (TOMLKitError, ValueError):
        return raw
    return value


def resolved(file: ConfigFile, workspace: Workspace) -> list[dict[str, Any]]:
    """Every key with its value and where that comes from: `file:line`, or `default`.

    Raises ValidationError when the file has problems.
    """
    config, problems = check_file(file, workspace)
    if config is None:
        raise refused(file, [p for p in problems if p.severity == "error"])
    rows = []
    for table, inner, _ in fields_of(type(config)):
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


__all__ = ["known_key", "parse_value", "read", "resolved", "set_values"]
