"""`osmosis eval`, the platform half: submit, list, info, wait, logs, stop, retry, download, delete.

The table in `main` joins them with the local half. Each command parses, calls `submit` or `runs`, and returns.
"""

from __future__ import annotations

import typer

from . import run_flags as flags
from . import runs
from .context import current
from .output import DetailResult, ListResult, OperationResult, Result
from .submit import SubmitOptions, submit_config


def submit(
    config: str = typer.Argument(None, help="A config under configs/eval/, by path or name; none: the only one"),
    yes: bool = flags.YES,
    wait: bool = typer.Option(False, "--wait", "-w", help="Follow the run to its end, then show its figures"),
    wait_sync: bool = flags.WAIT_SYNC,
    allow_dirty: bool = flags.ALLOW_DIRTY,
    snapshot: bool = flags.SNAPSHOT,
    secrets_file: str = flags.SECRETS_FILE,
    fail_under: float = typer.Option(None, "--fail-under", min=0, max=1, help="With --wait: 1 below this pass rate"),
) -> OperationResult:
    """Submit an evaluation to the platform, after checking config, code, dataset and secrets.

    Example:
        osmosis eval submit configs/eval/multiply.toml --wait
        osmosis eval submit multiply --yes --wait --fail-under 0.8
    """
    options = SubmitOptions(
        kind="eval",
        config=config,
        yes=yes,
        wait=wait,
        wait_sync=wait_sync,
        allow_dirty=allow_dirty,
        snapshot=snapshot,
        secrets_file=secrets_file,
        fail_under=fail_under,
    )
    return submit_config(current(), options)


def list_runs(
    limit: int = flags.LIMIT,
    offset: int = flags.OFFSET,
    everything: bool = flags.EVERYTHING,
) -> ListResult:
    """List the evaluation runs of this workspace, newest first.

    Example:
        osmosis eval list --limit 10
    """
    return runs.list_runs(current(), "eval", limit=limit, everything=everything, offset=offset)


def info(name: str = flags.NAME, output: str = flags.OUTPUT) -> DetailResult:
    """Show one run: status, figures with confidence intervals, failures by phase and category.

    Example:
        osmosis eval info multiply-1
        osmosis eval info multiply-1 --json
    """
    return runs.run_info(current(), "eval", name, output)


def wait(
    name: str = flags.NAME,
    fail_under: float = typer.Option(None, "--fail-under", min=0, max=1, help="Exit 1 below this pass rate"),
) -> OperationResult:
    """Follow a run until it is over. Ctrl-C leaves the run alone; the same command goes on.

    Example:
        osmosis eval wait multiply-1
    """
    return runs.wait_for(current(), "eval", name, fail_under)


def logs(
    name: str = flags.NAME,
    limit: int = flags.LINES,
    cursor: str = flags.CURSOR,
    follow: bool = flags.FOLLOW,
) -> Result | None:
    """Show the log of a run.

    Example:
        osmosis eval logs multiply-1 -f
    """
    return runs.show_logs(current(), "eval", name, limit=limit, cursor=cursor, follow=follow)


def stop(name: str = flags.NAME, yes: bool = flags.YES) -> OperationResult:
    """Stop a pending or running run; what is finished is kept.

    Example:
        osmosis eval stop multiply-1 --yes
    """
    return runs.stop_run(current(), "eval", name, yes=yes)


def delete(name: str = flags.NAME, yes: bool = flags.YES) -> OperationResult:
    """Delete a run that is over, with everything it produced.

    Example:
        osmosis eval delete multiply-1 --yes
    """
    return runs.delete_run(current(), "eval", name, yes=yes)


def retry(
    name: str = flags.NAME,
    yes: bool = flags.YES,
    secrets_file: str = flags.SECRETS_FILE,
) -> OperationResult:
    """Run the failed and skipped rollouts of a run again.

    Example:
        osmosis eval retry multiply-1 --yes
    """
    return runs.retry_run(current(), name, yes=yes, secrets_file=secrets_file)


def download(
    name: str = flags.NAME,
    output: str = typer.Option(None, "-o", "--output", help="Folder [default: .osmosis/evals/NAME]"),
    types: str = typer.Option("metrics,trajectories", "--type", help="metrics, trajectories, artifacts, logs, all"),
    rows: str = typer.Option(None, "--rows", help="Only these rows: 3,7,10-20"),
    overwrite: bool = typer.Option(False, "--overwrite", help="Fetch again what is there"),
    yes: bool = flags.YES,
) -> OperationResult:
    """Fetch the figures and conversations of a run.

    Example:
        osmosis eval download multiply-1
        osmosis eval download multiply-1 --type all --rows 0-9 -o results
    """
    from .download import DownloadOptions, download_run

    return download_run(current(), name, DownloadOptions(output, types, rows, overwrite, yes))
