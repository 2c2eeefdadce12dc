"""`osmosis schema`: the envelope comes from the return type of the command's function, its content from a record."""

import inspect
import typing
from typing import Annotated, Any, Literal

from pydantic.json_schema import models_json_schema
from typer import Argument
from typer.core import TyperGroup

from osmosis.cli.core import completion
from osmosis.cli.core.app import find_command
from osmosis.cli.core.context import current
from osmosis.cli.core.results import SCHEMA_VERSION, DetailResult, ListResult, OperationResult, Result, to_json
from osmosis.cli.main import ROOT
from osmosis.errors import UsageError
from osmosis.records.api import runs as run_api
from osmosis.records.api.accounts import WorkspaceRole, WorkspaceRow
from osmosis.records.api.body import Body, LogEntry, Moment
from osmosis.records.api.datasets import DatasetEntry
from osmosis.records.api.training import CheckpointRow, ModelRow, TrainingMetrics, TrainingRunDetail, TrainingRunRow
from osmosis.records.api.workspaces import SecretRow
from osmosis.records.base import Record, describe_fields
from osmosis.records.run.report import Report


class PrintedEval(run_api.EvalRunDetail):
    """`eval show` of a platform's run."""

    summary: run_api.RunSummary
    metrics: run_api.EvalMetrics | None


class PrintedTraining(TrainingRunDetail):
    """`train show`."""

    summary: run_api.RunSummary
    metrics: TrainingMetrics | None
    checkpoints: list[CheckpointRow]


class PrintedEnd(Body):
    """A finished run, printed by `wait` and `submit --wait`; the latter with the keys of `PrintedSubmit`."""

    id: str
    name: str
    url: str | None = None
    status: str
    summary: run_api.RunSummary
    results: run_api.RunResults
    report: Report | None = None
    failure: run_api.RunFailure | None = None


class PrintedUpload(Body):
    """`eval upload`."""

    id: str | None = None
    name: str | None = None
    url: str | None = None
    files: int
    sent: int
    already: bool


class PrintedDataset(DatasetEntry):
    """`dataset upload`."""

    uploaded: bool | None = None


class PrintedSecret(SecretRow):
    """`secret list`."""

    scope: Literal["personal", "workspace"] | None = None
    shadows: bool | None = None  # True when it hides the workspace's secret of the same name


class PrintedWorkspace(WorkspaceRow):
    """`workspace list`, `workspace show`."""

    current: bool | None = None
    chosen_by: str | None = None
    platform_url: str | None = None


class PrintedModel(ModelRow):
    """`model list`."""

    type: Literal["base", "lora"] | None = None


class PrintedAccount(Body):
    email: str | None = None
    name: str | None = None
    expires_at: Moment | None = None
    platform_url: str | None = None
    source: str | None = None
    effective_source: str | None = None
    persistent_login: bool | None = None
    token_id: str | None = None


class PrintedIdentity(PrintedAccount):
    """`whoami`."""

    account: PrintedAccount
    workspace: WorkspaceRole | None = None


class PrintedPlatform(Body):
    """`platform start`, `platform status`."""

    url: str | None = None
    pid: int | None = None
    port: int | None = None
    version: str | None = None
    started_at: Moment | None = None
    data_dir: str | None = None
    log: str | None = None


class GitPlace(Body):
    identity: str | None = None
    remote_url: str | None = None


class PrintedSource(Body):
    rollout: str
    entrypoint: str
    model: str
    dataset: str
    branch: str | None = None
    commit_sha: str | None = None


class PrintedSubmit(Body):
    """`eval submit`, `train submit`."""

    id: str
    name: str
    status: str | None = None
    model_name: str
    dataset_name: str
    created_at: Moment | None = None
    url: str | None = None
    git: GitPlace | None = None
    workspace_directory: str
    config: PrintedSource


Json = dict[str, Any]
_COUNT: Json = {"type": ["integer", "null"]}
_LOG, _END = (LogEntry,), (PrintedEnd,)
_SUBMIT = (PrintedSubmit, PrintedEnd)
INSIDE: dict[str, tuple[type[Record], ...]] = {
    "eval list": (run_api.EvalRunRow,),
    "train list": (TrainingRunRow,),
    "eval info": (PrintedEval,),
    "train info": (PrintedTraining,),
    "eval submit": _SUBMIT,
    "train submit": _SUBMIT,
    "eval wait": _END,
    "train wait": _END,
    "eval upload": (PrintedUpload,),
    "eval retry": (run_api.RetriedRun,),
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


def schema(
    command: Annotated[list[str], Argument(help="The command, such as eval info", autocompletion=completion.commands)],
) -> None:
    """Print the JSON Schema of a command's output under --json.

    Example:
        osmosis schema eval info
        osmosis schema dataset list
    """
    current().output.stdout.write(to_json(schema_of(command)) + "\n")


def schema_of(words: list[str]) -> Json:
    name = " ".join(words)
    kinds = [kind for kind in result_kinds(words) if kind is not Result] or [ListResult, DetailResult, OperationResult]
    inside, definitions = _inside(INSIDE.get(name, ()))
    forms = [_envelope(kind, inside) for kind in kinds]
    form = forms[0] if len(forms) == 1 else {"anyOf": forms}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"osmosis {name} --json"}
    return {**head, **form, **({"$defs": definitions} if definitions else {})}


def _inside(records: tuple[type[Record], ...]) -> tuple[Json, Json]:
    if not records:
        return {"type": "object"}, {}
    keys, definitions = models_json_schema([(describe_fields(record), "serialization") for record in records])
    forms = list(keys.values())
    return forms[0] if len(forms) == 1 else {"anyOf": forms}, definitions.get("$defs", {})


def result_kinds(words: list[str]) -> list[type[Result]]:
    command, path, rest = find_command(ROOT, words)
    line = f"osmosis {' '.join(path)}"
    if isinstance(command, TyperGroup) and not command.invoke_without_command:
        raise UsageError(f"{line} is a group", hint=f"{line} --help; one of: {', '.join(command.commands)}")
    if rest and not rest[0].startswith("-"):
        raise UsageError(f"{rest[0]} is an argument, not a command", hint=f"osmosis schema {path[0]}")
    returned = typing.get_type_hints(inspect.unwrap(command.callback)).get("return", type(None))
    options = typing.get_args(returned) or (returned,)
    kinds = [option for option in options if isinstance(option, type) and issubclass(option, Result)]
    if not kinds:
        raise UsageError(f"osmosis {' '.join(words)} prints text, not a result", hint="osmosis --help")
    return kinds


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
