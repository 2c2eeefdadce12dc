"""`osmosis model merge`: an adapter and its base model become a model of their own, on the platform."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from osmosis.errors import PlatformError
from osmosis.records.contract.model_bodies import MergeRequest, ModelMerge
from osmosis.records.run_status import RunStatus

from .context import current
from .deploy import Name
from .results import NextStep, OperationResult

if TYPE_CHECKING:
    from osmosis.client import PlatformClient

POLL_S = 0.5


def merge(
    name: Name,
    new_name: Annotated[
        str | None, typer.Option("--name", help="Name of the new model [default: the adapter's name and -merged]")
    ] = None,
    dtype: Annotated[
        Literal["auto", "fp32", "bf16"], typer.Option(help="Type of its weights; auto is the base model's")
    ] = "auto",
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is merged")] = True,
) -> OperationResult:
    """Merge an adapter into its base model. The result is a full safetensors model in the model store.

    Example:
        osmosis model merge multiply-1
        osmosis model merge multiply-1-step-20 --name multiply-v1 --dtype bf16
    """
    ctx = current()
    with ctx.client() as client:
        started = client.models.merge(name, MergeRequest(name=new_name, dtype=dtype))
        made = started.model_name or name
        if not wait:
            steps = [NextStep("see the result", command=f"osmosis model info {made}")]
            message = f"{started.merged_from} is being merged into {made}"
            return OperationResult("model.merge", message, started.to_dict(), next_steps=steps)
        ctx.output.say(f"merging {started.merged_from} into {made}; Ctrl-C leaves it running", style="dim")
        done = _done(client, started.id or made)
        row = client.models.base(made)
    steps = [
        NextStep("serve it", command=f"osmosis model deploy {made}"),
        NextStep("take it with you", command=f"osmosis model download {made}"),
    ]
    resource = {**row.to_dict(), "merged_from": done.merged_from}
    return OperationResult("model.merge", f"{done.merged_from} is merged: {made}", resource, next_steps=steps)


def _done(client: PlatformClient, merge_id: str) -> ModelMerge:
    """Waits for its end. PlatformError with the reason when it did not succeed."""
    while True:
        found = client.models.merged(merge_id)
        if found.status == RunStatus.FINISHED.value:
            return found
        if found.status is None or RunStatus(found.status).over:
            why = found.message or f"it is {found.status}"
            raise PlatformError(f"{found.merged_from} was not merged: {why}", hint=found.fix)
        time.sleep(POLL_S)
