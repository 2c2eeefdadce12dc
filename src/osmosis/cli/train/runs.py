from typing import Annotated

from typer import Option

from osmosis.cli.core import prompts
from osmosis.cli.core.context import current
from osmosis.cli.core.environment import SecretsFile, read_secrets_file
from osmosis.cli.core.render import draw_curves
from osmosis.cli.core.results import DetailResult, ListResult, NextStep, OperationResult
from osmosis.cli.eval.runs import CHECKPOINT_COLUMNS, OutputFile, TrainName, run_state, write_json
from osmosis.records.api.training import TrainingMetrics


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
