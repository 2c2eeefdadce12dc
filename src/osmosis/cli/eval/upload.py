"""`osmosis eval upload`: sends rollouts, figures and provenance; never the dataset, the code or a key."""

from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Annotated

from typer import Argument, Option

from osmosis.cli.core import completion
from osmosis.cli.core.context import AppContext, current
from osmosis.cli.core.results import DetailResult, NextStep, OperationResult
from osmosis.cli.eval.download import byte_progress
from osmosis.engine.journal import Journal
from osmosis.engine.output.upload import complete_report, export
from osmosis.errors import Conflict, OsmosisError
from osmosis.local.run import marks_of
from osmosis.local.run_options import run_folder
from osmosis.records.api.printed import PrintedUpload
from osmosis.records.run.annotations import MarkChange, Marks


def upload(
    name: Annotated[
        str, Argument(help="Name of a finished local run, or its folder", autocompletion=completion.local_runs)
    ],
    replace: Annotated[bool, Option(help="Replace this run's earlier upload")] = False,
) -> OperationResult:
    """Upload a local run to the platform: rollouts, metrics, labels, tags and provenance.

    An interrupted upload continues where it stopped. A run that has changed since (resumed, regraded, retried)
    replaces its earlier upload with --replace.

    Example:
        osmosis eval upload nightly
        osmosis eval upload .osmosis/runs/nightly --replace
    """
    ctx = current()
    done = upload_run(ctx, Journal(run_folder(name, ctx.cwd)), replace=replace)
    outcome = "is already on the platform, unchanged" if done.already else "is on the platform"
    message = f"run {done.name} {outcome}"
    steps = [NextStep("show it", command=f"osmosis eval show {done.name}")]
    return OperationResult("eval.upload", message, done.to_dict(), next_steps=steps)


def upload_run(ctx: AppContext, journal: Journal, *, replace: bool = False) -> PrintedUpload:
    complete_report(journal)
    with ctx.client() as client, TemporaryDirectory(prefix="osmosis-upload-") as folder:
        root = ctx.path(folder)
        manifest = export(journal, root)
        opened = client.imports.open({**manifest, "reimport": replace})
        already, pending = opened.finalized, opened.pending
        if not already:
            with byte_progress(ctx, sum(file.size or 0 for file in pending), journal.folder.name) as moved:
                opened = client.imports.send(opened, root, moved)
        written = marks_of(journal.folder)
        if written != Marks() and opened.eval_run_name:
            client.evals.mark(opened.eval_run_name, MarkChange(add_tags=written.tags, note=written.note or None))
    return PrintedUpload(
        id=opened.eval_run_id,
        name=opened.eval_run_name,
        url=opened.platform_url,
        files=len(manifest["files"]),
        sent=0 if already else len(pending),
        already=already,
    )


def upload_after(ctx: AppContext, journal: Journal, result: DetailResult | int) -> DetailResult | int:
    try:
        done = upload_run(ctx, journal, replace=True)
    except Conflict as error:
        ctx.output.warn("NOT_UPLOADED", f"{error.message}; the run is not uploaded")
        return result
    except OsmosisError as error:
        again = f"osmosis eval upload {journal.folder.name} --replace"
        ctx.output.warn("NOT_UPLOADED", f"{error.message}; the run is not uploaded: {again}")
        return result or 1 if isinstance(result, int) else replace(result, exit_code=result.exit_code or 1)
    ctx.output.say(f"uploaded: {done.url}")
    if isinstance(result, DetailResult):
        result.data["uploaded"] = done.to_dict()
    return result
