"""`osmosis model`: base models and trained adapters: sent, fetched, looked at, deployed, deleted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from osmosis.base.model_folder import FolderFacts, check_model, model_files
from osmosis.metrics.formats import size

from . import prompts
from .context import current
from .deploy import Name, asked, example
from .download import byte_progress
from .paging import Everything, Paging
from .results import Column, DetailResult, ListResult, NextStep, OperationResult, when

if TYPE_CHECKING:
    from osmosis.client.transfer import Progress
    from osmosis.records.contract.model_bodies import AnnouncedFile


def list_models(
    kind: Annotated[Literal["all", "base", "lora"], typer.Option("--type", help="Which models")] = "all",
    limit: Annotated[int | None, typer.Option(min=1, max=50, help="Show at most N of each [default: 50]")] = None,
    everything: Everything = False,
) -> ListResult:
    """List base models and adapters.

    Example:
        osmosis model list --type lora
    """
    paging = Paging(limit, everything)
    blocks: dict[str, list[dict[str, object]]] = {}
    with current().client() as client:
        for each in ("base", "lora") if kind == "all" else (kind,):
            rows = client.models.all(each) if everything else client.models.page(each, limit=paging.size).models
            blocks[each] = [row.to_dict() for row in rows]
    items = [{**row, "type": each} for each, found in blocks.items() for row in found]
    columns = [
        Column("model_name", "Name"),
        Column("type", "Type"),
        Column("base_model", "Base"),
        Column("training_run_name", "From run"),
        Column("checkpoint_step", "Step", justify="right"),
        Column("reward", "Reward", justify="right"),
        Column("deployment_state", "Deployed"),
        Column("created_at", "Created", show=when, wide=True),
    ]
    extra = {f"{each}_models": found for each, found in blocks.items()}
    empty = "no models yet: osmosis model upload FOLDER; osmosis train submit makes more"
    return ListResult(items, columns, empty=empty, extra=extra)


def info(name: Name) -> DetailResult:
    """Show one model, an adapter or a base model.

    Example:
        osmosis model info multiply-1-step-20
    """
    ctx = current()
    with ctx.client() as client:
        _, row = client.models.find(name)
    data = {**row.to_dict(), **asked(row, ctx.environ)}
    steps = [NextStep("ask it", command=example(row, ctx.environ))] if row.deployment_state == "serving" else []
    return DetailResult(data, title=row.model_name or name, next_steps=steps)


def upload(
    folder: Annotated[Path, typer.Argument(help="The folder that save_pretrained wrote, with the tokenizer in it")],
    name: Annotated[str | None, typer.Option(help="Name of the model [default: the folder's]")] = None,
) -> OperationResult:
    """Check a base model and upload it. An interrupted upload continues where it stopped.

    Only safetensors weights, the config and the tokenizer files are sent; never code.

    Example:
        osmosis model upload ./tiny-qwen
        osmosis model upload ./checkpoint --name tiny-qwen-warm
    """
    from osmosis.client.models import announced

    ctx = current()
    place = ctx.path(folder)
    facts = check_model(place)
    files = model_files(place)
    called = name or place.resolve().name
    with ctx.client() as client:
        with byte_progress(ctx, facts.size, f"reading {called}") as read:
            listed = [_counted(announced(path), read) for path in files]
        waiting = client.models.announce(called, listed)
        missing = waiting.missing_bytes
        if waiting.status == "ready":
            message = f"base model {called} is already on the platform, with the same files"
            return OperationResult("model.upload", message, {**waiting.to_dict(), "uploaded": False})
        with byte_progress(ctx, missing, f"sending {called}") as moved:
            row = client.models.send(waiting, place, moved)
    steps = [NextStep("train it", command=f'model_path = "{called}" in configs/training/NAME.toml')]
    message = f"base model {called} is ready: {_words(facts)}; {size(missing)} sent"
    return OperationResult("model.upload", message, {**row.to_dict(), "uploaded": True}, next_steps=steps)


def _counted(file: AnnouncedFile, read: Progress) -> AnnouncedFile:
    read(file.size)
    return file


def _words(facts: FolderFacts) -> str:
    template = "" if facts.chat_template else ", no chat template (training needs one)"
    return f"{facts.architecture}, {facts.parameters / 1e6:.1f} M parameters{template}"


def download(
    name: Name,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder to write to [default: models/NAME]")
    ] = None,
    yes: prompts.Yes = False,
) -> OperationResult:
    """Download a base model, or the adapter of a trained one. Files that you already have are not downloaded again.

    Example:
        osmosis model download multiply-1-step-20
        osmosis model download multiply-1 -o ./adapter --yes
    """
    ctx = current()
    with ctx.client() as client:
        kind, row = client.models.find(name)
        found = client.models.files(kind, row.model_name or name)
        folder = ctx.path(output) if output else ctx.cwd / "models" / found.name
        total = sum(file.size for file in found.files)
        if not prompts.confirm(ctx, f"Download {len(found.files)} files, {size(total)}, to {folder}?", yes=yes):
            return OperationResult("model.download", "Cancelled.", status="cancelled")
        with byte_progress(ctx, total, f"fetching {found.name}") as moved:
            fetched = [client.models.fetch(file, folder, moved) for file in found.files]
    resource = {"name": found.name, "type": found.type, "path": str(folder), "bytes": total}
    resource |= {"base_model": found.base_model, "files": len(fetched), "files_fetched": sum(fetched)}
    return OperationResult("model.download", f"{found.name} is in {folder}", resource)


def delete(name: Name, yes: prompts.Yes = False) -> OperationResult:
    """Delete a model and its files. Refused while a run uses it.

    Example:
        osmosis model delete multiply-1-step-20 --yes
    """
    ctx = current()
    with ctx.client() as client:
        kind, row = client.models.find(name)
        shown = row.model_name or name
        what = "base model" if kind == "base" else "adapter"
        if not prompts.confirm(ctx, f"Delete {what} {shown} and its files?", yes=yes):
            return OperationResult("model.delete", "Cancelled.", row.to_dict(), status="cancelled")
        client.models.delete(kind, shown)
    return OperationResult("model.delete", f"{what} {shown} is deleted", row.to_dict())
