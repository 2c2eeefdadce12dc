from pathlib import Path
from typing import Annotated

import typer

from osmosis.base.redact import Redactor
from osmosis.bridges.export_run import EXPORT_FORMATS, ExportFormat, default_path, export_run
from osmosis.bridges.import_run import FORMATS, import_run, read_logs
from osmosis.bridges.mapped import parse_mapping
from osmosis.cli.core import completion
from osmosis.cli.core.context import current
from osmosis.cli.core.results import Column, ListResult, NextStep, OperationResult, build_columns
from osmosis.cli.eval.progress import open_sender
from osmosis.engine.journal import Journal
from osmosis.errors import NetworkError, UsageError
from osmosis.local.run_options import check_name, run_folder, runs_folder

COLUMNS = (
    *build_columns("name=Run", "format=Format"),
    Column("rows", "Rows", justify="right"),
    Column("attempts", "Attempts", justify="right"),
    Column("rollouts", "Rollouts", justify="right"),
    Column("score", "Score"),
    Column("mean", "Mean", justify="right", show=lambda value: "-" if value is None else f"{value:.3f}"),
    Column("failed", "Failed", justify="right"),
)


def import_log(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Logs, or folders of logs")],
    format: Annotated[
        str | None,
        typer.Option(
            help=f"Format of the logs [found by content]: {', '.join(FORMATS)}", autocompletion=lambda: list(FORMATS)
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run; of several, the beginning of their names")] = None,
    mapping: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="NAME=COLUMN", help="Column of JSONL for prompt, answer, score, ... Repeatable"),
    ] = None,
    pass_threshold: Annotated[float, typer.Option(help="Lowest score with which a rollout passes")] = 1.0,
) -> ListResult:
    """Import logs of other tools as local runs: inspect_ai, verifiers, lm-eval, promptfoo, DeepEval, ATIF, JSONL.

    An imported run is shown, searched, labelled, compared and uploaded as any other; only resume and regrade need the
    agent, which stays where it is. The log itself is not changed.

    Example:
        osmosis eval import logs/2026-11-24_gsm8k.eval
        osmosis eval import before.eval after.eval && osmosis eval compare before after
        osmosis eval import answers.jsonl --map prompt=question --map answer=output --map score=grade
    """
    ctx = current()
    columns = parse_mapping(mapping or ())
    runs = runs_folder(ctx.cwd)
    logged = [(path, run) for path in paths for run in read_logs(ctx.path(path), format, columns)]
    names: list[str] = []
    for path, run in logged:
        single = sum(other == path for other, _ in logged) == 1
        base = (
            name if name and len(logged) == 1 else f"{name}-{run.name}" if name else path.stem if single else run.name
        )
        names.append(_free_name(check_name(base[:90].strip(".-_ ").replace(" ", "-"), "--name"), names, runs))
    if name and len(logged) == 1 and names[0] != name:
        raise UsageError(f"there is already a run named {name!r}", hint="choose another --name, or delete that run")
    imported = [
        import_run(run, runs / label, source=path, pass_threshold=pass_threshold)
        for (path, run), label in zip(logged, names, strict=True)
    ]
    items = []
    for stored in imported:
        report, primary = stored.report, stored.report.primary
        items.append(
            {
                "name": stored.name,
                "format": stored.format,
                "rows": report.rows,
                "attempts": report.attempts,
                "rollouts": report.completed,
                "score": primary.name if primary else None,
                "mean": primary.mean if primary else None,
                "failed": report.failed,
            }
        )
    steps = [NextStep("look at it", command=f"osmosis eval show {imported[-1].name}")]
    if len(imported) > 1:
        steps.append(NextStep("compare", command=f"osmosis eval compare {imported[0].name} {imported[-1].name}"))
    return ListResult(items, COLUMNS, next_steps=steps)


def _free_name(name: str, chosen: list[str], runs: Path) -> str:
    number, free = 1, name
    while free in chosen or (runs / free).exists():
        number += 1
        free = f"{name}-{number}"
    return free


def export(
    name: Annotated[
        str, typer.Argument(help="Name of a local run, or its folder", autocompletion=completion.local_runs)
    ],
    format: Annotated[
        ExportFormat, typer.Option(help="Format to write; otlp sends", autocompletion=lambda: list(EXPORT_FORMATS))
    ] = "jsonl",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File, or folder for atif and huggingface [RUN.FORMAT]")
    ] = None,
    url: Annotated[str | None, typer.Option(help="Of otlp: the receiver [OTEL_EXPORTER_OTLP_ENDPOINT]")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there")] = False,
) -> OperationResult:
    """Export a local run: a log of inspect_ai, ATIF trajectories, JSONL, CSV, Parquet, Hugging Face, OpenTelemetry.

    Example:
        osmosis eval export nightly --format inspect && inspect view --log-dir .
        osmosis eval export nightly --format parquet -o nightly.parquet
    """
    ctx = current()
    if format != "otlp" and url is not None:
        raise UsageError(f"--url and --format {format} cannot be used together", hint="--format otlp sends to it")
    if format == "otlp" and (output is not None or overwrite):
        flag = "--overwrite" if output is None else "--output"
        raise UsageError(f"{flag} and --format otlp cannot be used together", hint="--url names the receiver")
    journal = Journal(run_folder(name, ctx.cwd))
    if format == "otlp":
        sender = open_sender(f"otlp:{url or ''}", journal.plan(), Redactor())
        for rollout in journal.rollouts():
            sender.add(rollout)
        if lost := sender.close():
            raise NetworkError(f"{lost} of {sender.added} traces were not sent", hint="is the receiver there?")
        return OperationResult("eval.export", f"{sender.sent} traces sent", {"name": journal.folder.name})
    path = ctx.path(output or default_path(journal.folder.name, format))
    count = export_run(journal, format, path, overwrite=overwrite)
    resource = {"name": journal.folder.name, "format": format, "path": str(path), "rollouts": count}
    return OperationResult("eval.export", f"{count} rollouts written to {path}", resource)
