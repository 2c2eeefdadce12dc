"""What only training runs have on the command line: curves, checkpoints, and going on or starting once more."""

from __future__ import annotations

from collections.abc import Mapping

from osmosis.metrics.training_curves import curve_info, sparkline
from osmosis.records.contract.training_bodies import TrainingMetrics

from . import prompts
from .context import current
from .drawing import Canvas, Grid, GridColumn, Line
from .results import Column, DetailResult, ListResult, NextStep, OperationResult, clean, when
from .run_show import brief
from .runs import Name, Output, wait_for, write_json
from .secrets_file import SecretsFile, read_secrets_file

CHECKPOINT_COLUMNS = (
    Column("checkpoint_name", "Name"),
    Column("checkpoint_step", "Step", justify="right"),
    Column("status", "Status"),
    Column("created_at", "Created", show=when),
)


def wait_train(name: Name) -> OperationResult:
    """Follow a training run until it is over. Ctrl-C does not stop the run; the same command follows it again.

    Example:
        osmosis train wait multiply-1
    """
    return wait_for(current(), "training", name, None)


def checkpoints(name: Name) -> ListResult:
    """List the checkpoints of a training run.

    Example:
        osmosis train checkpoints multiply-1
    """
    with current().client() as client:
        rows = client.trainings.checkpoints(name)
    return ListResult([row.to_dict() for row in rows], CHECKPOINT_COLUMNS, empty="no checkpoints yet")


def metrics(name: Name, output: Output = None) -> DetailResult:
    """Show the curves of a training run: first and last value, range, and a sparkline.

    --json and the file of -o have every point.

    Example:
        osmosis train metrics multiply-1
        osmosis train metrics multiply-1 -o curves.json
    """
    ctx = current()
    with ctx.client() as client:
        found = client.trainings.metrics(name)
    assert isinstance(found, TrainingMetrics)
    result = DetailResult(found.to_dict(), human=lambda console: _draw(console, found))
    if output:
        result.extra = {"output": str(write_json(ctx.path(output), result.envelope()))}
    return result


def _draw(console: Canvas, found: TrainingMetrics) -> None:
    titles = ("curve", "first", "last", "lowest", "highest", "course")
    columns = [GridColumn(one, right=one not in ("curve", "course"), whole=one == "course") for one in titles]
    table = Grid(columns)
    courses = {
        curve.metric_key: sparkline([point.value for point in curve.data_points if point.value is not None])
        for curve in found.metrics
    }
    for one in found.overview.metric_summaries if found.overview else []:
        figures = ("-" if v is None else f"{v:.4g}" for v in (one.initial, one.latest, one.min, one.max))
        table.add(clean(one.title or curve_info(one.key).title), *figures, courses.get(one.key, ""))
    if not found.metrics:
        console.print(Line("no step is finished yet"))
        return
    console.print(table)


def resume(name: Name, yes: prompts.Yes = False, secrets_file: SecretsFile = None) -> OperationResult:
    """Continue a stopped or failed training run from its last checkpoint.

    Example:
        osmosis train resume multiply-1 --yes
    """
    question = "Resume {name} from its last checkpoint?"
    return _again("resume", name, question, yes=yes, secrets_file=secrets_file)


def retry(name: Name, yes: prompts.Yes = False, secrets_file: SecretsFile = None) -> OperationResult:
    """Start a new run with the same config, code and rows; the first one is left unchanged.

    Example:
        osmosis train retry multiply-1 --yes
    """
    question = "Start a new run of the config of {name}?"
    return _again("retry", name, question, yes=yes, secrets_file=secrets_file)


def _again(how: str, name: str, question: str, *, yes: bool, secrets_file: str | None) -> OperationResult:
    ctx = current()
    secrets: Mapping[str, str] = read_secrets_file(ctx, secrets_file) if secrets_file else {}
    operation = f"train.{how}"
    with ctx.client() as client:
        seen = client.trainings.get(name)
        if not prompts.confirm(ctx, question.format(name=seen.run.name), yes=yes):
            body = {**brief(seen), "status": seen.run.status}
            return OperationResult(operation, "Cancelled.", body, status="cancelled")
        ask = client.trainings.resume if how == "resume" else client.trainings.retry
        answer = ask(seen.run.name, secrets)
    steps = [NextStep("follow it", command=f"osmosis train wait {answer.name}")]
    done = "goes on from its last checkpoint" if how == "resume" else f"is a retry of {seen.run.name}"
    return OperationResult(operation, f"run {answer.name} {done}", answer.to_dict(), next_steps=steps)
