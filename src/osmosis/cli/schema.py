"""`osmosis schema COMMAND`: the JSON Schema of what a command prints under `--json`.

The envelope follows from what the command's function says it returns; what is inside is a record.
"""

from __future__ import annotations

import typing
from typing import Annotated, Any

import typer
from pydantic.json_schema import models_json_schema

from osmosis.errors import UsageError
from osmosis.records.base import Record
from osmosis.records.contract.accounts import WorkspaceRow
from osmosis.records.contract.body import LogEntry
from osmosis.records.contract.eval_bodies import EvalRunRow
from osmosis.records.contract.printed import (
    PrintedDataset,
    PrintedEnd,
    PrintedEval,
    PrintedIdentity,
    PrintedModel,
    PrintedPlatform,
    PrintedSecret,
    PrintedTraining,
    PrintedUpload,
    PrintedWorkspace,
)
from osmosis.records.contract.printed_submit import PrintedSubmit
from osmosis.records.contract.run_bodies import RetriedRun
from osmosis.records.contract.training_bodies import CheckpointRow, TrainingRunRow
from osmosis.records.contract.uploads import DatasetEntry
from osmosis.records.describe import described

from .context import current
from .main import ROOT
from .resolve import resolve, unknown_command
from .results import SCHEMA_VERSION, DetailResult, ListResult, OperationResult, Result, to_json

Json = dict[str, Any]
_COUNT: Json = {"type": ["integer", "null"]}
_LOG, _END = (LogEntry,), (PrintedEnd,)
_SUBMIT = (PrintedSubmit, PrintedEnd)
INSIDE: dict[str, tuple[type[Record], ...]] = {
    "eval list": (EvalRunRow,),
    "train list": (TrainingRunRow,),
    "eval info": (PrintedEval,),
    "train info": (PrintedTraining,),
    "eval submit": _SUBMIT,
    "train submit": _SUBMIT,
    "eval wait": _END,
    "train wait": _END,
    "eval upload": (PrintedUpload,),
    "eval retry": (RetriedRun,),
    "eval logs": _LOG,
    "train logs": _LOG,
    "train checkpoints": (CheckpointRow,),
    "dataset logs": _LOG,
    "dataset list": (DatasetEntry,),
    "dataset info": (DatasetEntry,),
    "dataset upload": (PrintedDataset,),
    "secret list": (PrintedSecret,),
    "secret set": (PrintedSecret,),
    "workspace list": (PrintedWorkspace,),
    "workspace current": (PrintedWorkspace,),
    "workspace create": (WorkspaceRow,),
    "model list": (PrintedModel,),
    "whoami": (PrintedIdentity,),
    "auth whoami": (PrintedIdentity,),
    "platform start": (PrintedPlatform,),
    "platform status": (PrintedPlatform,),
}
"""Command -> what is inside its envelope: one of these records."""


def schema(command: Annotated[list[str], typer.Argument(help="The command, for example: eval info")]) -> None:
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
    inside, definitions = _inside(INSIDE.get(name, ()))
    forms = [_envelope(kind, inside) for kind in kinds]
    form = forms[0] if len(forms) == 1 else {"anyOf": forms}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"osmosis {name} --json"}
    return {**head, **form, **({"$defs": definitions} if definitions else {})}


def _inside(records: tuple[type[Record], ...]) -> tuple[Json, Json]:
    """What an envelope holds, and the definitions it refers to."""
    if not records:
        return {"type": "object"}, {}
    keys, made = models_json_schema([(described(record), "serialization") for record in records])
    forms = list(keys.values())
    return forms[0] if len(forms) == 1 else {"anyOf": forms}, made.get("$defs", {})


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
    found = resolve(ROOT, words)
    if found.command is None:
        raise UsageError(f"osmosis {' '.join(words)} is a group", hint=f"osmosis {' '.join(words)} --help")
    target = found.command.target()
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
