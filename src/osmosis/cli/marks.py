"""`osmosis eval tag`, `note`, `rename` and `pin`: what people write on a run, of this machine or of the platform.

As everywhere, a name means a local run first; `platform:NAME` never does.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import ValidationError as PydanticError

from osmosis.base.json_types import JsonObject
from osmosis.errors import UsageError
from osmosis.local.run_marks import mark, marks_of
from osmosis.records.marks import MarkChange, tag_of

from .context import AppContext, current
from .results import OperationResult
from .run_finder import RunFinder

if TYPE_CHECKING:
    from osmosis.client import PlatformClient

Run = Annotated[str, typer.Argument(help="Name of a local run, or of one of the platform (platform:NAME)")]


def _tag(text: str) -> str:
    try:
        return tag_of(text)
    except ValueError as error:
        raise UsageError(str(error), hint="osmosis eval tag RUN nightly") from None


def tag(
    name: Run,
    tags: Annotated[list[str] | None, typer.Argument(metavar="TAG...", help="Tags that the run should have")] = None,
    remove: Annotated[list[str] | None, typer.Option("--remove", metavar="TAG", help="Remove a tag")] = None,
) -> OperationResult:
    """Add tags to a run, or remove them. List the runs that share one: osmosis eval list --tag TAG

    Example:
        osmosis eval tag multiply-4 nightly prompt:v3
        osmosis eval tag multiply-4 --remove nightly
    """
    if not tags and not remove:
        raise UsageError("no tag is given", hint=f"osmosis eval tag {name} nightly, or --remove TAG")
    change = MarkChange(add_tags=[_tag(one) for one in tags or []], remove_tags=remove or [])
    return _marked(current(), "eval.tag", name, change)


def note(
    name: Run, text: Annotated[str, typer.Argument(help="What to write on it; an empty text takes it away")]
) -> OperationResult:
    """Write a note on a run.

    Example:
        osmosis eval note multiply-4 "the first one with the new prompt"
    """
    return _marked(current(), "eval.note", name, _change(note=text))


def rename(name: Run, new: Annotated[str, typer.Argument(metavar="NEW", help="Its new name")]) -> OperationResult:
    """Rename a run. A local run cannot be renamed while it is running.

    Example:
        osmosis eval rename multiply-20261122-1914 before-the-prompt
    """
    return _marked(current(), "eval.rename", name, _change(name=new))


def pin(name: Run, undo: Annotated[bool, typer.Option("--undo", help="Unpin it")] = False) -> OperationResult:
    """Pin a run: lists show it first.

    Example:
        osmosis eval pin multiply-4
        osmosis eval pin multiply-4 --undo
    """
    return _marked(current(), "eval.pin", name, _change(pinned=not undo))


def _change(**given: object) -> MarkChange:
    try:
        return MarkChange.model_validate(given)
    except PydanticError as error:
        raise UsageError(f"{error.errors()[0]['msg']}", hint="write less") from error


def _marked(ctx: AppContext, operation: str, name: str, change: MarkChange) -> OperationResult:
    def here(folder: Path) -> JsonObject:
        there = mark(folder, change)
        return {"name": there.name, "folder": str(there), **marks_of(there).to_dict()}

    def on_platform(client: PlatformClient, name: str) -> JsonObject:
        return client.evals.mark(client.evals.get(name).run.name, change).to_dict()

    with RunFinder(ctx) as runs:
        return _said(operation, runs.find(name, of_folder=here, of_platform=on_platform))


def _said(operation: str, run: JsonObject) -> OperationResult:
    told = [f"tags: {', '.join(run.get('tags') or []) or 'none'}"]
    told += ["pinned"] if run.get("pinned") else []
    told += [f"note: {run['note']}"] if run.get("note") else []
    return OperationResult(operation, f"{run['name']}: {'; '.join(told)}", run)
