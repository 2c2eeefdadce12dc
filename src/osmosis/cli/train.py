"""`osmosis train`: submit and follow training runs. The same flow as `osmosis eval`, with its own record."""

from __future__ import annotations

import typer

from . import runs
from .context import current
from .output import Column, DetailResult, ListResult, OperationResult, Result
from .render_text import when
from .submit import SubmitOptions, submit_config

app = typer.Typer(
    help="""Train a model with reinforcement learning.

    Example:
        osmosis train submit configs/training/multiply.toml --wait
        osmosis train info multiply-1
    """
)
NAME = typer.Argument(..., help="Name or id of the run")
YES = typer.Option(False, "--yes", "-y", help="Do not ask")


@app.command()
def submit(
    config: str = typer.Argument(None, help="A config under configs/training/, by path or name; none: the only one"),
    yes: bool = YES,
    wait: bool = typer.Option(False, "--wait", "-w", help="Follow the run to its end"),
    wait_sync: bool = typer.Option(False, "--wait-sync", help="Wait until the platform has synced HEAD"),
    allow_dirty: bool = typer.Option(False, "--allow-dirty", help="Run what is synced, whatever lies here"),
    snapshot: bool = typer.Option(False, "--snapshot", help="Run this working tree as it is, without a commit"),
    secrets_file: str = typer.Option(None, "--secrets-file", help="NAME=value lines for this run only; - is stdin"),
) -> OperationResult:
    """Submit a training run, after checking config, code, dataset and secrets.

    Example:
        osmosis train submit configs/training/multiply.toml --wait
    """
    options = SubmitOptions(
        kind="training",
        config=config,
        yes=yes,
        wait=wait,
        wait_sync=wait_sync,
        allow_dirty=allow_dirty,
        snapshot=snapshot,
        secrets_file=secrets_file,
    )
    return submit_config(current(), options)


@app.command("list")
def list_runs(
    limit: int = typer.Option(None, min=1, max=50, help="How many [default: 50]"),
    offset: int = typer.Option(0, min=0, help="How many to leave out"),
    everything: bool = typer.Option(False, "--all", help="All of them"),
) -> ListResult:
    """List the training runs of this workspace, newest first.

    Example:
        osmosis train list
    """
    return runs.list_runs(current(), "training", limit=limit, everything=everything, offset=offset)


@app.command()
def info(
    name: str = NAME, output: str = typer.Option(None, "-o", "--output", help="Write the same as JSON to this file")
) -> DetailResult:
    """Show one training run: status, figures, curves in short.

    Example:
        osmosis train info multiply-1
    """
    return runs.run_info(current(), "training", name, output)


@app.command()
def wait(name: str = NAME) -> OperationResult:
    """Follow a training run until it is over.

    Example:
        osmosis train wait multiply-1
    """
    return runs.wait_for(current(), "training", name, None)


@app.command()
def logs(
    name: str = NAME,
    limit: int = typer.Option(50, min=1, max=200, help="How many lines of the end"),
    cursor: str = typer.Option(None, help="Go further back: next_cursor of the last answer"),
    follow: bool = typer.Option(False, "--follow", "-f", help="Go on until the run is over"),
) -> Result | None:
    """Show the log of a training run.

    Example:
        osmosis train logs multiply-1 -f
    """
    return runs.show_logs(current(), "training", name, limit=limit, cursor=cursor, follow=follow)


@app.command()
def stop(name: str = NAME, yes: bool = YES) -> OperationResult:
    """Stop a pending or running training run; its checkpoints are kept.

    Example:
        osmosis train stop multiply-1 --yes
    """
    return runs.stop_run(current(), "training", name, yes=yes)


@app.command()
def checkpoints(name: str = NAME) -> ListResult:
    """List the checkpoints of a training run.

    Example:
        osmosis train checkpoints multiply-1
    """
    with current().client() as client:
        rows = client.trainings.checkpoints(name)
    columns = [
        Column("checkpoint_name", "Name"),
        Column("checkpoint_step", "Step", justify="right"),
        Column("status", "Status"),
        Column("created_at", "Created", show=when),
    ]
    return ListResult(rows, columns, empty="no checkpoint yet")
