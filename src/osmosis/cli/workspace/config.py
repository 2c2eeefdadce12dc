import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from rich.console import Console
from rich.text import Text
from typer import Argument, Option

from osmosis.base.files import write_text
from osmosis.cli.core import completion
from osmosis.cli.core.app import new_app
from osmosis.cli.core.context import AppContext, current
from osmosis.cli.core.results import Column, DetailResult, ListResult, NextStep, OperationResult, build_columns
from osmosis.errors import NotFound, UsageError, ValidationError
from osmosis.records.base import Problem
from osmosis.records.config.check import CONFIGS, iterate_fields
from osmosis.workspace import config_file
from osmosis.workspace.config_file import ConfigFile
from osmosis.workspace.layout import CONFIG_KINDS, ConfigKind, Workspace, find_workspace


def set_values(file: ConfigFile, workspace: Workspace, given: Mapping[str, str]) -> dict[str, tuple[Any, Any]]:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    before_problems = _errors(file, workspace)
    unreadable = [p for p in before_problems if p.code in ("toml-syntax", "not-utf8", "unreadable")]
    if unreadable:
        raise config_file.config_error(file, unreadable)
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
        raise config_file.config_error(ConfigFile(file.kind, file.path, file.shown), new)
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
    elif isinstance(table, Table) and table.value.body:  # comments alone, the last of which may be of another table
        table.value._insert_at(0, name, tomlkit.item(value))
    else:
        table[name] = value


def _errors(file: ConfigFile, workspace: Workspace) -> list[Problem]:
    _, problems = config_file.check_file(file, workspace)
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
    config, problems = config_file.check_file(file, workspace)
    if config is None:
        raise config_file.config_error(file, [p for p in problems if p.severity == "error"])
    rows = []
    for table, inner, _ in iterate_fields(type(config)):
        current = getattr(config, table)
        written = file.data.get(table) or {}
        if inner is None or current is None:
            values = dict(current or {})
        else:
            values = {name: getattr(current, name) for name in inner.model_fields} | (current.model_extra or {})
        for name, value in values.items():
            source = file.where(f"{table}.{name}") if name in written else "default"
            if value is not None or name in written:
                rows.append({"key": f"{table}.{name}", "value": value, "source": source})
            else:
                rows.append({"key": f"{table}.{name}", "value": None, "source": "not set"})
    return rows


app = new_app(
    help="""Show and change configs; `osmosis check` checks them.

    Example:
        osmosis config show --resolved
        osmosis config set evaluation.n 5
    """
)


@app.command("check", hidden=True)
def check(
    paths: Annotated[
        list[str] | None,
        Argument(help="Configs to check [default: all in the workspace]", autocompletion=completion.configs),
    ] = None,
) -> ListResult:
    """Check configs and show every problem with its line and fix. Exits with 1 when there is an error.

    Example:
        osmosis check
        osmosis check configs/eval/multiply.toml
    """
    ctx = current()
    workspace = find_workspace(ctx.cwd)
    files = _files(ctx, workspace, paths or [])
    items: list[dict[str, object]] = []
    for file in files:
        _, problems = config_file.check_file(file, workspace)
        items += [{"severity": p.severity, **config_file.to_issue(p), "what": p.what} for p in problems]
    wrong = sum(1 for row in items if row["severity"] == "error")
    columns = [*build_columns("where=Where", "what=What", "fix=Fix"), Column("severity", "Severity", wide=True)]
    count = "1 config is" if len(files) == 1 else f"{len(files)} configs are"
    empty = f"{count} valid" if files else "no config yet: osmosis rollout new NAME"
    extra = {"checked": [f.shown for f in files], "errors": wrong, "workspace_directory": str(workspace.root)}
    return ListResult(items, columns, title="Configs", empty=empty, extra=extra, exit_code=1 if wrong else 0)


@app.command("show")
def show(
    path: Annotated[
        str | None,
        Argument(
            help="A config, or the rollout it belongs to [default: the only eval config]",
            autocompletion=completion.configs,
        ),
    ] = None,
    resolved: Annotated[bool, Option(help="Show every key, with defaults and where each value comes from.")] = False,
) -> DetailResult | ListResult:
    """Show a config as written, or every key with its default.

    Example:
        osmosis config show --resolved
        osmosis config show configs/training/multiply.toml
    """
    ctx = current()
    workspace = find_workspace(ctx.cwd)
    file = _file(ctx, workspace, path) if path else _only(workspace, ["eval"])
    if resolved:
        rows = list_values(file, workspace)
        columns = [
            Column("key", "Key"),
            Column("value", "Value", show=lambda v: "" if v is None else json.dumps(v, ensure_ascii=False)),
            Column("source", "From"),
        ]
        return ListResult(rows, columns, title=file.shown, extra={"path": file.shown, "kind": file.kind})
    problems = config_file.read(file)
    if problems:
        raise config_file.config_error(file, problems)

    def draw(console: Console) -> None:
        from rich.syntax import Syntax

        console.print(
            Syntax(file.text, "toml", background_color="default") if console.is_terminal else file.text, markup=False
        )

    return DetailResult({"path": file.shown, "kind": file.kind, "config": file.data}, title=file.shown, human=draw)


@app.command("schema")
def schema(
    kind: Annotated[ConfigKind, Argument(help="Which kind of config.")] = "eval",
    write: Annotated[bool, Option(help="Update configs/*.schema.json in this workspace.")] = False,
) -> DetailResult | OperationResult:
    """Print the JSON Schema for a kind of config. Editors find it through the `#:schema` line.

    Example:
        osmosis config schema training
        osmosis config schema --write
    """
    if write:
        workspace = find_workspace(current().cwd)
        written = []
        for relative, text in config_file.schema_files().items():
            target = workspace.root / relative
            if not target.is_file() or target.read_text("utf-8") != text:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text, "utf-8")
                written.append(relative)
        message = f"wrote {', '.join(written)}" if written else "the schemas are up to date"
        return OperationResult("config.schema", message, {"files": written})
    text = config_file.schema_text(kind)
    return DetailResult(json.loads(text), human=lambda console: console.print(Text(text.rstrip()), soft_wrap=True))


@app.command("set")
def set_key(
    words: Annotated[
        list[str],
        Argument(
            metavar="[CONFIG] KEY VALUE ...",
            help="KEY is table.key, VALUE is TOML or plain text, CONFIG is a path or a rollout. Pairs may be repeated.",
            autocompletion=completion.configs,
        ),
    ],
) -> OperationResult:
    """Change values in a config, all of them or none. Comments and order are kept; an invalid value changes nothing.

    Example:
        osmosis config set evaluation.n 5 evaluation.limit 20
        osmosis config set configs/eval/multiply.toml experiment.model_path openai/gpt-5-mini
    """
    ctx = current()
    workspace = find_workspace(ctx.cwd)
    if len(words) < 2:
        raise UsageError("config set takes KEY VALUE, or CONFIG KEY VALUE", hint="osmosis config set evaluation.n 5")
    named, pairs = (words[:1], words[1:]) if len(words) % 2 else ([], words)
    values = dict(zip(pairs[::2], pairs[1::2], strict=True))
    tables = {key.partition(".")[0] for key in values}
    if named:
        file = _file(ctx, workspace, named[0], table=min(tables))
    else:
        file = _only(workspace, [kind for kind in CONFIG_KINDS if tables <= set(CONFIGS[kind].model_fields)])

    changed = [
        {"key": key, "before": before, "after": after}
        for key, (before, after) in set_values(file, workspace, values).items()
    ]
    text = "; ".join(f"{entry['key']} = {_toml(entry['after'])} (was {_toml(entry['before'])})" for entry in changed)
    resource = {"path": file.shown, **(changed[0] if len(changed) == 1 else {}), "changed": changed}
    steps = [NextStep("show all keys", command=f"osmosis config show {file.shown} --resolved")]
    return OperationResult("config.set", f"{file.shown}: {text}", resource, next_steps=steps)


def _toml(value: object) -> str:
    return "not set" if value is None else json.dumps(value, ensure_ascii=False, default=str)


def _files(ctx: AppContext, workspace: Workspace, paths: list[str]) -> list[ConfigFile]:
    if not paths:
        configs = (*workspace.configs(), *workspace.configs("benchmark"))
        return [ConfigFile(kind, path, workspace.relative(path)) for kind, path in configs]
    return [
        config_file.locate(_existing(ctx, workspace, path), workspace, "benchmark")
        if "benchmark" in Path(path).parts
        else _file(ctx, workspace, path)
        for path in paths
    ]


def _file(ctx: AppContext, workspace: Workspace, name: str, *, table: str = "") -> ConfigFile:
    path = _existing(ctx, workspace, name)
    folders = {kind: (workspace.root / "configs" / kind).resolve() for kind in CONFIG_KINDS}
    kind = next((kind for kind, folder in folders.items() if path.resolve().is_relative_to(folder)), None)
    if kind is None and not name.endswith(".toml"):
        named = [k for k, p in workspace.configs() if p.stem == name]
        if not named:
            raise NotFound(f"there is no config {name}", hint="list them: osmosis check")
        chosen = next((k for k in named if table in CONFIGS[k].model_fields), named[0])
        return config_file.locate(workspace.root / "configs" / chosen / f"{name}.toml", workspace, chosen)
    return config_file.locate(path, workspace, kind or "eval")


def _only(workspace: Workspace, kinds: Sequence[ConfigKind]) -> ConfigFile:
    matching = [ConfigFile(kind, path, workspace.relative(path)) for kind, path in workspace.configs() if kind in kinds]
    if len(matching) == 1:
        return matching[0]
    if not matching:
        raise NotFound("no config here has that key", hint="osmosis rollout new NAME creates one")
    raise ValidationError("several configs match; name one", hint=f"one of: {', '.join(f.shown for f in matching)}")


def _existing(ctx: AppContext, workspace: Workspace, name: str) -> Path:
    path = ctx.path(name)
    return path if path.exists() else workspace.root / name
