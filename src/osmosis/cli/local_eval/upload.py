"""`osmosis eval upload`: a run that was made on this machine, shown on the platform beside the others.

The platform gets the rollouts, the figures and where they came from; never the dataset, the code or a key.
"""

from __future__ import annotations

from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from osmosis.cli.context import AppContext, current
from osmosis.cli.download import byte_progress
from osmosis.cli.results import DetailResult, NextStep, OperationResult
from osmosis.engine.export import complete_report, export
from osmosis.engine.journal import Journal
from osmosis.errors import Conflict, OsmosisError
from osmosis.local.request import run_folder
from osmosis.local.run_marks import marks_of
from osmosis.records.contract.printed import PrintedUpload
from osmosis.records.marks import MarkChange, Marks


def upload(
    name: Annotated[str, typer.Argument(help="Name of a finished local run, or its folder")],
    replace: Annotated[bool, typer.Option("--replace", help="Replace this run's earlier upload")] = False,
) -> OperationResult:
    """Upload a local run to the platform: rollouts, metrics, labels, tags and provenance.

    An interrupted upload continues where it stopped. A run that has changed since (resumed, regraded, retried)
    replaces its earlier upload with --replace.

    Example:
        osmosis eval upload nightly
        osmosis eval upload .osmosis/runs/nightly --replace
    """
    ctx = current()
    journal = Journal(run_folder(name, ctx.cwd))
    done = upload_run(ctx, journal, replace=replace)
    shown = done.name
    message = (
        f"run {shown} is already on the platform, unchanged" if done.already else f"run {shown} is on the platform"
    )
    steps = [NextStep("show it", command=f"osmosis eval info {shown}")]
    return OperationResult("eval.upload", message, done.to_dict(), next_steps=steps)


def upload_run(ctx: AppContext, journal: Journal, *, replace: bool = False) -> PrintedUpload:
    """Hand the run over. Conflict while it is not over."""
    complete_report(journal)
    with ctx.client() as client, TemporaryDirectory(prefix="osmosis-upload-") as folder:
        root = ctx.path(folder)
        manifest = export(journal, root)
        opened = client.imports.open({**manifest, "reimport": replace})
        already, pending = opened.finalized, opened.pending
        if not already:
            size = sum(file.size or 0 for file in pending)
            with byte_progress(ctx, size, journal.folder.name) as moved:
                opened = client.imports.send(opened, root, moved)
        written = marks_of(journal.folder)
        if written != Marks() and opened.eval_run_name:
            note = written.note or None
            client.evals.mark(opened.eval_run_name, MarkChange(add_tags=written.tags, note=note))
    return PrintedUpload(
        id=opened.eval_run_id,
        name=opened.eval_run_name,
        url=opened.platform_url,
        files=len(manifest["files"]),
        sent=0 if already else len(pending),
        already=already,
    )


def upload_after(ctx: AppContext, journal: Journal, result: DetailResult | int) -> DetailResult | int:
    """What `eval run --upload` does with a run that came to its end; one that did not is left here, and said so.

    A platform that cannot be reached does not take the run's results with it.
    """
    try:
        done = upload_run(ctx, journal, replace=True)
    except Conflict as error:
        ctx.output.warn("NOT_UPLOADED", f"{error.message}; the run is not uploaded")
        return result
    except OsmosisError as error:
        again = f"osmosis eval upload {journal.folder.name} --replace"
        ctx.output.warn("NOT_UPLOADED", f"{error.message}; the run is not uploaded: {again}")
        if isinstance(result, int):
            return result or 1
        return replace(result, exit_code=result.exit_code or 1)
    ctx.output.say(f"uploaded: {done.url}")
    if isinstance(result, DetailResult):
        result.data["uploaded"] = done.to_dict()
    return result
