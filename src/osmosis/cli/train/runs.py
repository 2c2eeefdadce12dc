from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from rich.console import Console
from rich.table import Column as TableColumn
from rich.text import Text
from typer import Argument, Option

from osmosis.cli.core import completion, prompts
from osmosis.cli.core.context import current
from osmosis.cli.core.environment import SecretsFile, read_secrets_file
from osmosis.cli.core.render import draw_curves, new_table
from osmosis.cli.core.results import DetailResult, ListResult, NextStep, OperationResult, clean
from osmosis.cli.eval.runs import CHECKPOINT_COLUMNS, OutputFile, TrainName, run_state, write_json
from osmosis.client import PlatformClient
from osmosis.errors import UsageError
from osmosis.metrics.figures import Figure
from osmosis.metrics.training import list_changed_keys, list_figures
from osmosis.records.api.training import TrainingMetrics, TrainingRunDetail


def checkpoints(name: TrainName) -> ListResult:
    """List the checkpoints of a training run.

    Example:
        osmosis train show multiply-1
    """
    with current().client() as client:
        rows = client.trainings.checkpoints(name)
    return ListResult([row.to_dict() for row in rows], CHECKPOINT_COLUMNS, empty="no checkpoints yet")


def metrics(name: TrainName, output: OutputFile = None) -> DetailResult:
    """Show the curves of a training run: first and last value, range, and a sparkline.

    --json and the file of -o have every point.

    Example:
        osmosis train show multiply-1
        osmosis train show multiply-1 -o curves.json
    """
    ctx = current()
    with ctx.client() as client:
        curves = client.trainings.metrics(name)
    assert isinstance(curves, TrainingMetrics)
    result = DetailResult(curves.to_dict(), human=lambda console: draw_curves(console, curves))
    if output:
        result.extra = {"output": str(write_json(ctx.path(output), result.envelope()))}
    return result


def resume(
    name: TrainName,
    fresh: Annotated[bool, Option(help="Start a new run with the same config, code and rows instead")] = False,
    secrets_file: SecretsFile = None,
) -> OperationResult:
    """Continue a stopped or failed training run from its last checkpoint.

    Example:
        osmosis train resume multiply-1 --yes
        osmosis train resume multiply-1 --fresh
    """
    ctx, operation = current(), "train.retry" if fresh else "train.resume"
    secrets = read_secrets_file(ctx, secrets_file) if secrets_file else {}
    with ctx.client() as client:
        detail = client.trainings.get(name)
        full = detail.run.name
        question = f"Start a new run of the config of {full}?" if fresh else f"Resume {full} from its last checkpoint?"
        prompts.agree(ctx, question, operation, **run_state(detail))
        answer = client.trainings.start_again(full, secrets, fresh=fresh)
    steps = [NextStep("follow it", command=f"osmosis train wait {answer.name}")]
    outcome = f"is a retry of {full}" if fresh else "goes on from its last checkpoint"
    return OperationResult(operation, f"run {answer.name} {outcome}", answer.to_dict(), next_steps=steps)


@dataclass(frozen=True, slots=True)
class Compared:
    detail: TrainingRunDetail
    figures: Sequence[Figure]
    best_checkpoint: str


def compare(
    names: Annotated[
        list[str], Argument(help="Two or more training runs, by name or id", autocompletion=completion.training_runs)
    ],
) -> DetailResult:
    """Compare training runs: rewards, steps, tokens and time, and the config keys that differ.

    Example:
        osmosis train compare multiply-2 multiply-3
        osmosis train compare multiply-2 multiply-3 multiply-4 --json
    """
    names = list(dict.fromkeys(names))
    if len(names) < 2:
        raise UsageError("a comparison needs two training runs", hint=f"osmosis train compare {names[0]} OTHER")
    with current().client() as client:
        runs = [_read(client, name) for name in names]
    changed = list_changed_keys([run.detail.config or {} for run in runs])
    listed = [run.detail.run.name for run in runs]
    data = {
        "runs": [
            {
                "name": name,
                "status": run.detail.run.status,
                "best_checkpoint": run.best_checkpoint or None,
                "figures": {figure.name: figure.value for figure in run.figures},
            }
            for name, run in zip(listed, runs, strict=True)
        ],
        "changed": {key: dict(zip(listed, values, strict=True)) for key, values in changed.items()},
    }
    page = (runs[0].detail.run.platform_url or "").partition("/runs/")[0]
    query = "&".join(f"run={run.detail.run.id}" for run in runs)
    steps = [NextStep("see their curves", url=f"{page}/compare?{query}")] if page else []
    return DetailResult(data, human=lambda console: _draw(console, runs, changed), next_steps=steps)


def _read(client: PlatformClient, name: str) -> Compared:
    detail, metrics = client.trainings.get(name), client.trainings.metrics(name)
    assert isinstance(detail, TrainingRunDetail)
    assert isinstance(metrics, TrainingMetrics)
    best = next((row.checkpoint_name for row in client.trainings.checkpoints(name) if row.best), None)
    return Compared(detail, list_figures(metrics), best or "")


def _draw(console: Console, runs: Sequence[Compared], changed: dict[str, list[str]]) -> None:
    grid = new_table(["", *(TableColumn(Text(clean(run.detail.run.name)), justify="right") for run in runs)])
    grid.add_row("Status", *(Text(clean(run.detail.run.status)) for run in runs))
    labels = {figure.name: figure.label for run in runs for figure in run.figures}
    for name, label in labels.items():
        texts = [next((figure.text for figure in run.figures if figure.name == name), "-") for run in runs]
        grid.add_row(label, *texts)
    grid.add_row("Best checkpoint", *(Text(clean(run.best_checkpoint or "-")) for run in runs))
    for key, values in changed.items():
        grid.add_row(Text(clean(key)), *(Text(clean(value or "-")) for value in values))
    console.print(grid)
