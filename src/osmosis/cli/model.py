"""`osmosis model`: base models and the adapters that training runs made; deploying and undeploying them."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from osmosis.errors import NotFound

from .context import current
from .paging import Everything, Paging
from .results import Column, DetailResult, ListResult, OperationResult, when

app = typer.Typer(
    help="""Base models and trained adapters.

    Example:
        osmosis model list
        osmosis model info multiply-1-step-20
    """
)
Name = Annotated[str, typer.Argument(help="Name of the model")]


@app.command("list")
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
        Column("created_at", "Created", show=when, wide=True),
    ]
    extra = {f"{each}_models": found for each, found in blocks.items()}
    return ListResult(items, columns, empty="no models yet: osmosis train submit makes them", extra=extra)


@app.command()
def info(name: Name) -> DetailResult:
    """Show one model, an adapter or a base model.

    Example:
        osmosis model info multiply-1-step-20
    """
    with current().client() as client:
        try:
            return DetailResult(client.models.lora(name).to_dict(), title=name)
        except NotFound:
            return DetailResult(client.models.base(name).to_dict(), title=name)


@app.command()
def deploy(name: Name) -> OperationResult:
    """Deploy an adapter for inference.

    Example:
        osmosis model deploy multiply-1-step-20
    """
    with current().client() as client:
        row = client.models.deploy(name)
    return OperationResult("model.deploy", f"model {name} is {row.status}", row.to_dict())


@app.command()
def undeploy(name: Name) -> OperationResult:
    """Take an adapter out of inference.

    Example:
        osmosis model undeploy multiply-1-step-20
    """
    with current().client() as client:
        row = client.models.undeploy(name)
    return OperationResult("model.undeploy", f"model {name} is {row.status}", row.to_dict())
