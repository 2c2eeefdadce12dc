import itertools
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from osmosis.bridges.export_process import Exports
from osmosis.bridges.export_run import EXPORT_FORMATS, ExportFormat, default_path, export_run
from osmosis.bridges.export_stream import stored_run
from osmosis.bridges.import_run import FORMATS, import_run, read_logs
from osmosis.bridges.mapped import parse_mapping
from osmosis.cli.agents import continue_inside
from osmosis.cli.core import completion
from osmosis.cli.core.context import AppContext, current, go_offline, online
from osmosis.cli.core.results import Column, DetailResult, ListResult, NextStep, OperationResult, build_columns
from osmosis.cli.eval.progress import print_aside
from osmosis.cli.eval.run_sources import LocalRun, RunFinder, open_run
from osmosis.engine.journal import Journal
from osmosis.engine.output.results_json import check_output
from osmosis.errors import NetworkError, UsageError
from osmosis.local import seal as sealing
from osmosis.local.run_options import check_name, run_folder, runs_folder
from osmosis.records.config.export import TOOLS, Export

SEND_S = 3600.0
COLUMNS = (
    *build_columns(
        "name=Run", "format=Format", ">rows=Rows", ">attempts=Attempts", ">rollouts=Rollouts", "score=Score"
    ),
    Column("mean", "Mean", justify="right", show=lambda value: "-" if value is None else f"{value:.3f}"),
    Column("failed", "Failed", justify="right"),
)


def import_log(
    paths: Annotated[list[Path], Argument(metavar="PATH...", help="Logs, or folders of logs")],
    format: Annotated[
        str | None,
        Option(help=f"Format of the logs [by content]: {', '.join(FORMATS)}", autocompletion=lambda: list(FORMATS)),
    ] = None,
    name: Annotated[str | None, Option(help="Name of the run; of several, the beginning of their names")] = None,
    mapping: Annotated[
        list[str] | None,
        Option("--map", metavar="NAME=COLUMN", help="Column of JSONL for prompt, answer, score, ... Repeatable"),
    ] = None,
    pass_threshold: Annotated[float, Option(help="Lowest score with which a rollout passes")] = 1.0,
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
        own = path.stem if single else run.name
        base = own if not name else name if len(logged) == 1 else f"{name}-{run.name}"
        stem = check_name(base[:90].strip(".-_ ").replace(" ", "-"), "--name")
        numbered = (stem if number == 1 else f"{stem}-{number}" for number in itertools.count(1))
        names.append(next(label for label in numbered if label not in names and not (runs / label).exists()))
    if name and len(logged) == 1 and names[0] != name:
        raise UsageError(f"there is already a run named {name!r}", hint="choose another --name, or delete that run")
    imported = [
        import_run(run, runs / label, source=path, pass_threshold=pass_threshold)
        for (path, run), label in zip(logged, names, strict=True)
    ]
    items = []
    for stored in imported:
        report, primary = stored.report, stored.report.primary
        item = {"name": stored.name, "format": stored.format, "rows": report.rows, "attempts": report.attempts}
        score = {"score": primary and primary.name, "mean": primary and primary.mean}
        items.append({**item, "rollouts": report.completed, **score, "failed": report.failed})
    steps = [NextStep("look at it", command=f"osmosis eval show {imported[-1].name}")]
    if len(imported) > 1:
        steps.append(NextStep("compare", command=f"osmosis eval compare {imported[0].name} {imported[-1].name}"))
    return ListResult(items, COLUMNS, next_steps=steps)


def export(
    name: Annotated[str, Argument(help="Name of a local run, or its folder", autocompletion=completion.local_runs)],
    format: Annotated[
        ExportFormat, Option(help="Format to write, or tool to send to", autocompletion=lambda: list(EXPORT_FORMATS))
    ] = "jsonl",
    output: Annotated[Path | None, Option("--output", "-o", help="RUN.FORMAT; a folder for atif, huggingface")] = None,
    url: Annotated[str | None, Option(help="Of a tool: its address; of tensorboard: a folder")] = None,
    project: Annotated[str, Option(help="Of a tool: its project, or experiment")] = "osmosis",
    content: Annotated[bool, Option(help="Send to a tool what was asked and answered, too")] = False,
    overwrite: Annotated[bool, Option(help="Replace what is there")] = False,
) -> OperationResult:
    """Export a local run: to a file of another format, or to a tool (MLflow, TensorBoard, Trackio, W&B, Langfuse, ...).

    What is sent to a tool again is there once.

    Example:
        osmosis eval export nightly --format inspect && inspect view --log-dir .
        osmosis eval export nightly --format parquet -o nightly.parquet
        osmosis eval export nightly --format mlflow --url http://127.0.0.1:5000
    """
    ctx = current()
    flags = {"--output": output is not None, "--overwrite": overwrite}
    if format not in TOOLS:
        flags = {"--url": url is not None, "--project": project != "osmosis", "--content": content}
    for flag in (flag for flag, is_used in flags.items() if is_used):
        hint = "--url names its address" if format in TOOLS else f"for one of {', '.join(TOOLS)}"
        raise UsageError(f"{flag} and --format {format} cannot be used together", hint=hint)
    journal = Journal(run_folder(name, ctx.cwd))
    if format in TOOLS:
        target = format if url is None else f"{format}:{url}"
        return _send(ctx, journal, Export(targets=[target], project=project, content=content))
    path = ctx.path(output or default_path(journal.folder.name, format))
    count = export_run(journal, format, path, overwrite=overwrite)
    resource = {"name": journal.folder.name, "format": format, "path": str(path), "rollouts": count}
    return OperationResult("eval.export", f"{count} rollouts written to {path}", resource)


def _send(ctx: AppContext, journal: Journal, options: Export) -> OperationResult:
    exports = Exports(options)
    exports.start(stored_run(journal), lambda _: ctx.environ, ctx.cwd)
    ctx.output.say(f"sending to {options.targets[0]}")
    for _, problem in exports.close(SEND_S):
        raise NetworkError(problem, hint="is the tool there? sending again sends nothing twice")
    resource = {"name": journal.folder.name, "target": options.targets[0], "rollouts": len(journal.finished())}
    return OperationResult("eval.export", f"{resource['rollouts']} rollouts sent to {options.targets[0]}", resource)


def seal(
    run: Annotated[str, Argument(help="Name of a local run or of a platform's", autocompletion=completion.runs)],
    output: Annotated[Path | None, Option("--output", "-o", help="File to write [RUN.seal.zip]")] = None,
) -> OperationResult:
    """Seal a run that has ended: one file with its journal, plan, report, lock, commit and hashes, for osmosis verify.

    It holds prompts and answers, as the journal does, no dataset and no code. Publish its sha256 with the figures.

    Example:
        osmosis eval seal platform:multiply-3 -o multiply.seal.zip
    """
    ctx = current()
    stored = open_run(RunFinder(ctx), run)
    check_output(path := ctx.path(output or Path(f"{stored.name}.seal.zip")))
    if isinstance(stored, LocalRun):
        sha256 = sealing.seal_local(stored.journal, path)
    else:
        sha256 = sealing.seal_remote(stored.client, stored.name, path)
    resource, steps = {"name": stored.name, "sha256": sha256}, [NextStep("check it", f"osmosis verify {path}")]
    return OperationResult(
        "eval.seal", f"{stored.name} is sealed in {path}; sha256 {sha256}", resource, next_steps=steps
    )


def verify(
    file: Annotated[Path, Argument(help="File of osmosis eval seal")],
    code: Annotated[Path, Option(help="Folder with agent, graders and dataset [this folder]")] = Path(),
    no_code: Annotated[bool, Option("--no-code", help="Run no code: check only bytes, journal and report")] = False,
) -> DetailResult:
    """Check a sealed run: its bytes, its journal, every figure of its report, every score, every conversation.

    Scores and conversations need the run's code: this folder's is compared with the sealed hashes, then run with the
    recorded answers. Connections beyond this machine are refused, judges are not asked again. Exits with 0 when all
    that could be checked is right, 1 when something differs, 2 when the file cannot be read.

    Example:
        osmosis verify nightly.seal.zip --code ../at-that-commit
    """
    ctx = current()
    path, folder = ctx.path(file), ctx.path(code)
    rollout = Path(sealing.SealFile(path).manifest.rollout or "").name
    if rollout and not no_code and (folder / "rollouts" / rollout).is_dir():
        continue_inside(ctx, folder, rollout)
    go_offline(ctx)  # a grader may ask a judge
    try:
        with print_aside():  # what the code prints
            result = sealing.verify(path, code=None if no_code else folder)
    finally:
        if not ctx.options.offline:
            online()
    differences = ["{where}: sealed {sealed!s:.200}, now {now!s:.200}".format(**it) for it in result.differences]
    verdict = f"{result.differing:,} differences" if result.differing else "all that could be checked is right"
    brief = result.to_dict() | {"not_checked": "\n".join(result.not_checked), "differences": "\n".join(differences)}
    return DetailResult(result.to_dict(), exit_code=min(result.differing, 1), brief=brief | {"verdict": verdict})
