"""Download and upload of a run's files: no partial file is left, no path leaves the folder, no dataset or key is
sent."""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Annotated

from typer import Argument, Option

from osmosis.cli.core import completion, prompts
from osmosis.cli.core.context import AppContext, current
from osmosis.cli.core.results import DetailResult, NextStep, OperationResult
from osmosis.cli.schema import PrintedUpload
from osmosis.client import PlatformClient
from osmosis.client.files import Progress
from osmosis.client.runs import Runs
from osmosis.engine.journal import AnnotationFile, Journal, read_annotations
from osmosis.engine.output.upload import complete_report, export
from osmosis.errors import Conflict, OsmosisError, PlatformError, UsageError, WorkspaceRequired
from osmosis.local.run import marks_of
from osmosis.local.run_options import run_folder
from osmosis.metrics.formats import size
from osmosis.records.api.runs import RunFile
from osmosis.records.run.annotations import ANNOTATIONS, MarkChange, Marks
from osmosis.records.run.status import RunKind
from osmosis.workspace.layout import find_workspace

TYPES = {
    "eval": ("metrics", "trajectories", "artifacts", "logs", "annotations", "tokens"),
    "benchmark": ("summary", "results", "artifacts", "logs"),
}
BATCH = 500
AT_ONCE = 8
ASK_ABOVE = 100 * 1024 * 1024


def download_run(
    ctx: AppContext,
    name: str,
    *,
    types: str,
    kind: RunKind = "eval",
    output: Path | None = None,
    rows: str | None = None,
    overwrite: bool = False,
    labels_into: str | None = None,
) -> OperationResult:
    names, operation = TYPES[kind], f"{kind}.download"
    parts = [part.strip() for part in types.split(",") if part.strip()]
    if unknown := sorted(set(parts) - {*names, "all"}):
        raise UsageError(f"--type {', '.join(unknown)}: not one of {', '.join(names)}, all")
    types = ",".join(names) if "all" in parts else ",".join(parts)
    into = None if labels_into is None else run_folder(labels_into, ctx.cwd)
    if into is not None and "annotations" not in types.split(","):
        types = f"{types},annotations"
    client = ctx.client()
    runs = client.runs(kind)
    run = runs.get(name).run
    folder = download_dir(ctx, run.name, output, kind)
    folder = folder if output else _folder(folder, run.id)
    files = runs.manifest(run.name, types=types, rows=rows).files
    missing = [file for file in files if overwrite or not _present(folder, file)]
    total = sum(file.size or 0 for file in missing)
    if total > ASK_ABOVE:
        prompts.agree(ctx, f"Fetch {len(missing)} files, {size(total)}?", operation)
    with ctx.output.bar("fetching", total, in_bytes=True) as progress:
        failed = _fetch_all(client, runs, run.name, folder, missing, progress)
    folder.mkdir(parents=True, exist_ok=True)
    note = {"id": run.id, "name": run.name, "url": run.platform_url}
    (folder / ".run.json").write_text(json.dumps(note, indent=2) + "\n")
    merged = None if into is None else AnnotationFile(into).merge(read_annotations(folder / ANNOTATIONS))
    got = len(missing) - len(failed)
    resource = {
        "name": run.name,
        "path": str(folder),
        "files": len(files),
        "files_fetched": got,
        "files_present": len(files) - len(missing),
        "files_failed": [{"path": path, "error": reason} for path, reason in failed],
        "bytes": total,
    }
    message = f"{got} files fetched to {folder}" + (f", {len(failed)} failed" if failed else "")
    if merged is not None and into is not None:
        resource["labels_added"] = merged
        message += f"; {merged} annotations added to {into.name}"
    return OperationResult(operation, message, resource, exit_code=1 if failed else 0)


def download_dir(ctx: AppContext, name: str, output: Path | None, kind: RunKind = "eval") -> Path:
    if output:
        return ctx.path(output)
    try:
        root = find_workspace(ctx.cwd).root
    except WorkspaceRequired:
        root = ctx.cwd
    return root / ".osmosis" / f"{kind}s" / name


def _folder(folder: Path, run_id: str) -> Path:
    try:
        other = json.loads((folder / ".run.json").read_text()).get("id")
    except (OSError, ValueError, AttributeError):
        return folder
    if other in (None, run_id):
        return folder
    return folder.with_name(f"{folder.name}--{hashlib.sha256(run_id.encode()).hexdigest()[:8]}")


def _target(folder: Path, path: str) -> Path:
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts or "\\" in path:
        raise PlatformError(f"the platform named a file outside the folder: {path}")
    return folder.joinpath(*pure.parts)


def _present(folder: Path, file: RunFile) -> bool:
    if file.path == ANNOTATIONS:
        return False  # people go on talking, and two of their files may be of the same size
    target = _target(folder, file.path)
    return target.is_file() and target.stat().st_size == file.size


def _fetch_all(
    client: PlatformClient, runs: Runs, name: str, folder: Path, files: list[RunFile], progress: Progress
) -> list[tuple[str, str]]:
    failed: list[tuple[str, str]] = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for start in range(0, len(files), BATCH):
            urls = runs.download_urls(name, files[start : start + BATCH])

            def fetch(file: RunFile, urls: dict[str, str] = urls) -> tuple[str, str] | None:
                path = file.path
                try:
                    if path not in urls:
                        return path, "the platform gave no URL"
                    client.transfer.download(urls[path], _target(folder, path), progress)
                except OsmosisError as error:
                    return path, error.message
                return None

            failed += [bad for bad in pool.map(fetch, files[start : start + BATCH]) if bad]
    return failed


def upload(
    name: Annotated[str, Argument(help="A finished local run, or its folder", autocompletion=completion.local_runs)],
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
    client = ctx.client()
    with TemporaryDirectory(prefix="osmosis-upload-") as folder:
        root = ctx.path(folder)
        manifest = export(journal, root)
        opened = client.imports.open({**manifest, "reimport": replace})
        already, pending = opened.finalized, opened.pending
        if not already:
            with ctx.output.bar(journal.folder.name, sum(file.size or 0 for file in pending), in_bytes=True) as moved:
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
