"""`osmosis schema COMMAND`: the JSON Schema of what a command prints under `--json`.

The envelope follows from what the command's function says it returns; what is inside comes from the records where
there is one, and is described by its known keys elsewhere.
"""

from __future__ import annotations

import typing
from typing import Any

import typer

from ..errors import UsageError
from .context import current
from .output import SCHEMA_VERSION, DetailResult, ListResult, OperationResult, Result, to_json

Json = dict[str, Any]
_TEXT: Json = {"type": ["string", "null"]}
_NUMBER: Json = {"type": ["number", "null"]}
_COUNT: Json = {"type": ["integer", "null"]}
_OBJECT: Json = {"type": ["object", "null"]}


def _object(**properties: Json) -> Json:
    return {"type": "object", "properties": properties}


RUN = _object(
    id=_TEXT, name=_TEXT, status=_TEXT, created_at=_TEXT, started_at=_TEXT, completed_at=_TEXT,
    model=_OBJECT, dataset=_OBJECT, rollout=_OBJECT, results=_OBJECT, platform_url=_TEXT, progress=_OBJECT,
)  # fmt: skip
DATASET = _object(
    id=_TEXT, file_name=_TEXT, file_size=_COUNT, status=_TEXT, file_format=_TEXT, row_count=_COUNT,
    creator_name=_TEXT, created_at=_TEXT, updated_at=_TEXT, platform_url=_TEXT,
)  # fmt: skip
SECRET = _object(
    id=_TEXT, name=_TEXT, scope={"enum": ["personal", "workspace"]}, created_at=_TEXT, updated_at=_TEXT,
    creator_name=_TEXT, updater_name=_TEXT, last_used_at=_TEXT, last_used_by=_TEXT,
)  # fmt: skip
WORKSPACE = _object(id=_TEXT, name=_TEXT, role=_TEXT, connected_repo=_OBJECT)
MODEL = _object(model_name=_TEXT, type=_TEXT, base_model=_TEXT, training_run_name=_TEXT, created_at=_TEXT)
LOG = _object(timestamp=_TEXT, level=_TEXT, step=_TEXT, message=_TEXT)
SUMMARY = _object(
    avg_reward=_NUMBER, pass_rate=_NUMBER, graded=_COUNT, passed=_COUNT, failed=_COUNT, skipped=_COUNT,
    progress=_object(completed=_COUNT, total=_COUNT, unit={"const": "rollouts"}),
    pass_threshold=_NUMBER, total_tokens=_COUNT, dataset_rows=_COUNT,
)  # fmt: skip
SUBMITTED = _object(
    id=_TEXT, name=_TEXT, status=_TEXT, model_name=_TEXT, dataset_name=_TEXT, created_at=_TEXT, url=_TEXT,
    git=_OBJECT, workspace_directory=_TEXT, config=_OBJECT, summary=SUMMARY, results=_OBJECT, failure=_OBJECT,
)  # fmt: skip
ACCOUNT = _object(
    email=_TEXT, name=_TEXT, expires_at=_TEXT, platform_url=_TEXT, source=_TEXT, effective_source=_TEXT,
    persistent_login={"type": "boolean"}, token_id=_TEXT,
)  # fmt: skip
PLATFORM = _object(
    url=_TEXT, pid=_COUNT, port=_COUNT, version=_TEXT, started_at=_TEXT, data_dir=_TEXT, log=_TEXT,
)  # fmt: skip
INSIDE: dict[str, Json] = {
    "eval list": RUN,
    "train list": RUN,
    "eval info": _object(eval_run=RUN, summary=SUMMARY, config=_OBJECT, results=_OBJECT, metrics=_OBJECT),
    "train info": _object(training_run=RUN, summary=SUMMARY, config=_OBJECT, metrics=_OBJECT),
    "eval submit": SUBMITTED,
    "train submit": SUBMITTED,
    "eval wait": SUBMITTED,
    "eval upload": _object(id=_TEXT, name=_TEXT, url=_TEXT, files=_COUNT, sent=_COUNT, already={"type": "boolean"}),
    "train wait": SUBMITTED,
    "eval logs": LOG,
    "train logs": LOG,
    "dataset logs": LOG,
    "dataset list": DATASET,
    "dataset info": DATASET,
    "dataset upload": DATASET,
    "secret list": SECRET,
    "secret set": SECRET,
    "workspace list": WORKSPACE,
    "workspace current": WORKSPACE,
    "workspace create": WORKSPACE,
    "model list": MODEL,
    "whoami": _object(account=ACCOUNT, workspace=_OBJECT),
    "auth whoami": _object(account=ACCOUNT, workspace=_OBJECT),
    "platform start": PLATFORM,
    "platform status": PLATFORM,
}


def schema(command: list[str] = typer.Argument(..., help="The command, for example: eval info")) -> None:
    """Print the JSON Schema of a command's output under --json.

    Example:
        osmosis schema eval info
        osmosis schema dataset list
    """
    current().output.stdout.write(to_json(schema_of(command)) + "\n")


def schema_of(words: list[str]) -> Json:
    """The schema of one command. UsageError when there is none of that name, or it prints no result."""
    name = " ".join(words)
    kinds = [kind for kind in result_kinds(words) if kind is not Result] or [ListResult, DetailResult, OperationResult]
    inside = INSIDE.get(name, {"type": "object"})
    forms = [_envelope(kind, inside) for kind in kinds]
    form = forms[0] if len(forms) == 1 else {"anyOf": forms}
    if name.endswith((" wait", " submit")):
        form = _with_report(form)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"osmosis {name} --json", **form}


def _with_report(form: Json) -> Json:
    """A finished run carries its whole report."""
    from ..records.describe import described
    from ..records.report import Report

    report = described(Report).model_json_schema()
    resource = form["properties"]["resource"]
    carried = {"anyOf": [{"$ref": "#/$defs/Report"}, {"type": "null"}]}
    resource = {**resource, "properties": {**resource["properties"], "report": carried}}
    definitions = {**report.pop("$defs", {}), "Report": report}
    return {**form, "properties": {**form["properties"], "resource": resource}, "$defs": definitions}


def result_kinds(words: list[str]) -> list[type[Result]]:
    """Which results a command's function says it returns."""
    hints = typing.get_type_hints(function_of(words))
    returned = hints.get("return", type(None))
    options = typing.get_args(returned) or (returned,)
    kinds = [option for option in options if isinstance(option, type) and issubclass(option, Result)]
    if not kinds:
        raise UsageError(f"osmosis {' '.join(words)} prints text, not a result", hint="osmosis --help")
    return kinds


def function_of(words: list[str]) -> Any:
    """The function behind a command line without arguments."""
    import importlib

    from .main import ROOT
    from .resolve import resolve, unknown_command

    found = resolve(ROOT, words)
    if found.command is None:
        raise UsageError(f"osmosis {' '.join(words)} is a group", hint=f"osmosis {' '.join(words)} --help")
    target = getattr(importlib.import_module(found.command.module), found.command.attr)
    if not isinstance(target, typer.Typer):
        if found.args:
            raise UsageError(f"{found.args[0]} is an argument, not a command", hint=f"osmosis schema {found.path[0]}")
        return target
    if not found.args and target.registered_callback and target.registered_callback.callback:
        return target.registered_callback.callback
    known = {
        c.name or c.callback.__name__.replace("_", "-"): c.callback for c in target.registered_commands if c.callback
    }
    if not found.args:
        raise UsageError(f"osmosis {' '.join(words)} is a group", hint=f"one of: {', '.join(known)}")
    if found.args[0] not in known:
        raise unknown_command(found.args[0], found.path, list(known), {})
    return known[found.args[0]]


def _envelope(kind: type[Result], inside: Json) -> Json:
    version = {"const": SCHEMA_VERSION}
    if issubclass(kind, ListResult):
        page: Json = {"total_count": {"type": "integer"}, "has_more": {"type": "boolean"}, "next_offset": _COUNT}
        return _required(schema_version=version, items={"type": "array", "items": inside}, **page)
    if issubclass(kind, DetailResult):
        return _required(schema_version=version, data=inside)
    status = {"enum": ["success", "cancelled", "failed"]}
    text = {"type": "string"}
    return _required(schema_version=version, status=status, operation=text, resource=inside, message=text)


def _required(**properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": list(properties)}
