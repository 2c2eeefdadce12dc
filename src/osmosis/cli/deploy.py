"""`osmosis model deploy`, `undeploy` and `logs`: a model that the platform serves, and how it is asked.

The address is the platform's own, or what `OSMOSIS_INFERENCE_URL` names where a proxy stands in front of it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from osmosis.errors import PlatformError
from osmosis.records.contract.training_bodies import ModelRow

from .context import AppContext, current
from .drawing import Canvas
from .paging import Cursor, Lines
from .results import ListResult, NextStep, OperationResult
from .runs import LOG_COLUMNS, write_lines

if TYPE_CHECKING:
    from osmosis.client import PlatformClient

INFERENCE_URL = "OSMOSIS_INFERENCE_URL"
POLL_S = 0.5
WAIT_S = 1800.0
Name = Annotated[str, typer.Argument(help="Name of the model; a training run's name is its best checkpoint")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until the model answers")]


def deploy(name: Name, wait: Wait = False) -> OperationResult:
    """Serve a model on the platform, for every OpenAI-compatible client, until it is undeployed.

    Example:
        osmosis model deploy multiply-1 --wait
        osmosis model deploy multiply-1-step-20
    """
    ctx = current()
    with ctx.client() as client:
        made = client.models.deploy(name)
        shown = made.model_name or name
        row = found(client, shown)
        if wait:
            row = _until_served(ctx, client, shown)
    state = row.deployment_state or made.state or "starting"
    message = f"model {shown} is deployed" if state == "serving" else f"model {shown} is being loaded"
    steps = [NextStep("ask it", command=example(row, ctx.environ))]
    if state != "serving":
        steps.insert(0, NextStep("see whether it answers", command=f"osmosis model info {shown}"))
    resource = {**made.to_dict(), **asked(row, ctx.environ), "state": state}
    return OperationResult("model.deploy", message, resource, next_steps=steps)


def undeploy(name: Name) -> OperationResult:
    """Stop serving a model. Requests in flight are answered first.

    Example:
        osmosis model undeploy multiply-1-step-20
    """
    with current().client() as client:
        row = client.models.undeploy(name)
    return OperationResult("model.undeploy", f"model {row.model_name or name} is {row.status}", row.to_dict())


def logs(name: Name, limit: Lines = 50, cursor: Cursor = None) -> ListResult:
    """Show the log of a model's deployment.

    Example:
        osmosis model logs multiply-1-step-20
    """
    ctx = current()
    with ctx.client() as client:
        page = client.models.logs(name, limit=limit, cursor=cursor)

    def draw(_: Canvas) -> None:
        write_lines(ctx, page.logs)

    extra = {"next_cursor": page.next_cursor}
    return ListResult([line.to_dict() for line in page.logs], LOG_COLUMNS, extra=extra, human=draw)


def found(client: PlatformClient, name: str) -> ModelRow:
    """A base model by its name, else an adapter."""
    return client.models.find(name)[1]


def asked(row: ModelRow, environ: Mapping[str, str]) -> dict[str, str]:
    """Where a model is asked and what it is called there: the base URL of an OpenAI client, and its `model`."""
    given = environ.get(INFERENCE_URL, "").rstrip("/")
    url = (given if given.endswith("/v1") else f"{given}/v1") if given else row.inference_url or ""
    return {"inference_url": url, "inference_model": row.inference_model or row.model_name or ""}


def example(row: ModelRow, environ: Mapping[str, str]) -> str:
    """One question, to be pasted into a shell."""
    at = asked(row, environ)
    question = f'{{"model": "{at["inference_model"]}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    head = f'curl {at["inference_url"]}/chat/completions -H "Authorization: Bearer $OSMOSIS_TOKEN"'
    return f"{head} -H 'Content-Type: application/json' -d '{question}'"


def _until_served(ctx: AppContext, client: PlatformClient, name: str) -> ModelRow:
    """Waits until it answers. PlatformError when it never will."""
    ctx.output.say(f"loading {name}; the first time, the trainer's environment is made", style="dim")
    deadline = time.monotonic() + WAIT_S
    while True:
        row = found(client, name)
        if row.deployment_state == "serving":
            return row
        if row.deployment_state in ("failed", "stopped", "stopping"):
            why = row.deployment_message or f"it is {row.deployment_state}"
            raise PlatformError(f"model {name} could not be deployed: {why}", hint=f"osmosis model logs {name}")
        if time.monotonic() > deadline:
            raise PlatformError(f"model {name} is still being loaded", hint=f"osmosis model logs {name}")
        time.sleep(POLL_S)
