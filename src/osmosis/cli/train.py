"""`osmosis train`: submit and follow training runs. The same flow as `osmosis eval`, with its own record."""

from __future__ import annotations

import typer

from . import run_flags as flags
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


@app.command()
def submit(
    config: str = typer.Argument(None, help="A config under configs/training/, by path or name; none: the only one"),
    yes: bool = flags.YES,
    wait: bool = typer.Option(False, "--wait", "-w", help="Follow the run to its end"),
    wait_sync: bool = flags.WAIT_SYNC,
    allow_dirty: bool = flags.ALLOW_DIRTY,
    snapshot: bool = flags.SNAPSHOT,
    secrets_file: str = flags.SECRETS_FILE,
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
    limit: int = flags.LIMIT,
    offset: int = flags.OFFSET,
    everything: bool = flags.EVERYTHING,
) -> ListResult:
    """List the training runs of this workspace, newest first.

    Example:
        osmosis train list
    """
    return runs.list_runs(current(), "training", limit=limit, everything=everything, offset=offset)


@app.command()
def info(name: str = flags.NAME, output: str = flags.OUTPUT) -> DetailResult:
    """Show one training run: status, figures, curves in short.

    Example:
        osmosis train info multiply-1
    """
    return runs.run_info(current(), "training", name, output)


@app.command()
def wait(name: str = flags.NAME) -> OperationResult:
    """Follow a training run until it is over.

    Example:
        osmosis train wait multiply-1
    """
    return runs.wait_for(current(), "training", name, None)


@app.command()
def logs(
    name: str = flags.NAME,
    limit: int = flags.LINES,
    cursor: str = flags.CURSOR,
    follow: bool = flags.FOLLOW,
) -> Result | None:
    """Show the log of a training run.

    Example:
        osmosis train logs multiply-1 -f
    """
    return runs.show_logs(current(), "training", name, limit=limit, cursor=cursor, follow=follow)


@app.command()
def stop(name: str = flags.NAME, yes: bool = flags.YES) -> OperationResult:
    """Stop a pending or running training run; its checkpoints are kept.

    Example:
        osmosis train stop multiply-1 --yes
    """
    return runs.stop_run(current(), "training", name, yes=yes)


@app.command()
def delete(name: str = flags.NAME, yes: bool = flags.YES) -> OperationResult:
    """Delete a training run that is over, with its curves and checkpoints.

    Example:
        osmosis train delete multiply-1 --yes
    """
    return runs.delete_run(current(), "training", name, yes=yes)


@app.command()
def checkpoints(name: str = flags.NAME) -> ListResult:
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
