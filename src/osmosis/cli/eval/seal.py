from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from osmosis.cli.core import completion
from osmosis.cli.core.context import current
from osmosis.cli.core.environment import go_offline, online
from osmosis.cli.core.results import DetailResult, NextStep, OperationResult
from osmosis.cli.core.rollout_environment import continue_inside
from osmosis.cli.eval.progress import print_aside
from osmosis.cli.eval.run_sources import LocalRun, open_run
from osmosis.cli.targets import RunFinder
from osmosis.engine.output.results_json import check_output
from osmosis.local import seal as sealing


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
    with RunFinder(ctx) as runs:
        stored = open_run(runs, run)
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
