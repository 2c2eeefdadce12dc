import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.table import Column as TableColumn
from rich.text import Text
from typer import Argument, Option

from osmosis.base.jsonable import JsonObject
from osmosis.cli.core import completion, prompts
from osmosis.cli.core.app import takes
from osmosis.cli.core.context import INSIDE, AppContext, SecretsFile, current, read_secrets_file
from osmosis.cli.core.render import draw_curves, new_table
from osmosis.cli.core.results import DetailResult, ListResult, NextStep, OperationResult, clean
from osmosis.cli.eval.follow import watch
from osmosis.cli.eval.runs import CHECKPOINT_COLUMNS, OutputFile, TrainName, run_state, write_json
from osmosis.cli.eval.submit import SubmitFlags, SubmitVerdict, config_argument, submit_config
from osmosis.cli.eval.submit_checks import SubmitCase, SubmitOptions, explain_refusal
from osmosis.client import PlatformClient
from osmosis.errors import NotFound, PlatformError, UsageError, ValidationError
from osmosis.metrics.figures import Figure
from osmosis.metrics.training import list_changed_keys, list_figures
from osmosis.records.api.training import TrainingCheck, TrainingMetrics, TrainingRunDetail
from osmosis.records.config.experiment import Experiment
from osmosis.records.config.run_config import EvalConfig, Evaluation, Secrets, TrainingConfig
from osmosis.records.run.plan import PLATFORM_MODEL

MAX_PROBE_CONCURRENCY = 4096
REWARD_TIMEOUT_S = 60
REWARD_ROWS = 20
REWARD_WARNINGS = 3


@dataclass(frozen=True)
class TrainSubmitFlags(SubmitFlags):
    config: Annotated[str | None, config_argument("training")] = None
    force: Annotated[bool, Option("--force", help="Submit although the evaluation leaves nothing to learn")] = False
    probe: Annotated[
        int | None,
        Option(min=1, metavar="N", help="First evaluate the base model on N rows, and use that for the check"),
    ] = None


@takes(TrainSubmitFlags)
def submit_train(flags: TrainSubmitFlags) -> OperationResult:
    """Submit a training run, after checking config, code, dataset, secrets, and whether it can learn anything.

    The last check uses the newest evaluation of the same rollout and dataset or, with --probe N, runs N rows now with
    the base model and as many attempts per row as in training.

    Example:
        osmosis train submit configs/training/multiply.toml --wait
        osmosis train submit multiply --probe 8
        osmosis train submit multiply --yes
    """
    return submit_config(current(), SubmitOptions.from_flags("training", flags), _check)


def _check(case: SubmitCase) -> SubmitVerdict:
    try:
        for answer in case.answers.datasets.values():
            answer.result()
    except NotFound:
        raise explain_refusal(case, []) from None
    eval_run = _run_probe(case)
    check = check_training(case.ctx, case.client, case.request_body(), force=case.options.force, eval_run=eval_run)
    rollouts = dict.fromkeys(each.rollout for each in case.config.environments.values())
    rewards = [check_reward(case.ctx, case.workspace.root, rollout, case.config.env) for rollout in rollouts]
    return SubmitVerdict({**plan_lines(check), "reward": "; ".join(rewards)}, {"check": check.to_dict()})


def check_training(
    ctx: AppContext, client: PlatformClient, body: Mapping[str, object], *, force: bool, eval_run: str | None = None
) -> TrainingCheck:
    """Return the platform's check of a config; raise ValidationError if it cannot learn, unless `force`."""
    check = client.trainings.check(body, eval_run=eval_run)
    for finding in check.findings:
        text = f"{finding.what} (fix: {finding.fix})" if finding.fix else finding.what
        if finding.severity == "info":
            ctx.output.say(text, style="dim")
        elif finding.severity == "warning" or force:
            ctx.output.warn(finding.code.upper().replace("-", "_"), text)
    if check.hopeless and not force:
        first = check.hopeless[0]
        issues = [{"key": finding.code, "message": finding.what, "fix": finding.fix} for finding in check.hopeless]
        message = f"not submitted: {first.what}"
        raise ValidationError(message, hint=f"{first.fix}; --force submits all the same", issues=issues)
    return check


def plan_lines(check: TrainingCheck) -> dict[str, object]:
    each = check.rollouts_per_step
    if check.examples is not None:
        return {
            "examples": f"{check.examples} rollouts of {check.eval_run} ({check.eval_model})",
            "steps": f"{check.steps} of {each} examples; {check.total_rollouts} rollouts for validation",
        }
    rows = f"{check.training_rows} to train on, {check.validation_rows} for validation"
    lines: dict[str, object] = {
        "rows": rows,
        "steps": f"{check.steps} of {each} rollouts, {check.total_rollouts} in all with validation",
    }
    if more := check.replacement_rollouts:
        lines["steps"] = f"{lines['steps']}, at most {more} more in place of rows without signal"
    for part in check.environments:
        passes = f"{part.rows} rows to train on, each {part.passes:.3g} times on average"
        held_out = f"{part.validation_rows} for validation, {part.test_rows} for tests"
        lines[part.name] = f"{part.share:.0%} of the rows of a step and of the validation reward; {passes}; {held_out}"
    if check.eval_run:
        lines["evidence"] = f"{check.eval_run} ({check.eval_model}): {_evidence(check)}"
    if seconds := check.least_s:
        long = f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
        long = f"{seconds:.0f} s" if seconds < 120 else long
        lines["time"] = f"at least {long} for the rollouts, side by side; updates come on top"
    return lines


def _evidence(check: TrainingCheck) -> str:
    parts = [f"{check.tried_rollouts} rollouts"]
    if check.mean_reward is not None:
        parts.append(f"mean reward {check.mean_reward:.2f}")
    if check.no_signal is not None:
        parts.append(f"no signal in {check.no_signal:.0%} of {check.tried_groups} rows")
    if check.signal_ci is not None:
        parts.append("signal in {:.0%} to {:.0%} of the training's groups".format(*check.signal_ci))
    if check.failed:
        parts.append(f"{check.failed:.0%} failed")
    return ", ".join(parts)


# -- --probe N: an ordinary evaluation of the base model on N rows, sampled as training samples it -------------------


def _run_probe(case: SubmitCase) -> str | None:
    rows, config = case.options.probe, case.config
    if rows is None or not isinstance(config, TrainingConfig):
        return None
    case.push()
    for environment in reversed(list(config.environments.values())):
        probe = probe_config(config.of(environment), rows)
        body = replace(case, config=probe).request_body()
        body.pop("name", None)  # that of the training run
        run = case.client.runs("eval").submit(body)
        about = f"{rows} rows of {environment.label} x {probe.evaluation.n} rollouts"
        case.ctx.output.say(f"probing {about} with the base model: {run.name}")
        detail = watch(case.ctx, case.client.evals, run.name)
        if detail.run.status != "finished":
            reason = f": {detail.failure.message}" if detail.failure else ""
            message = f"not submitted: the probe {run.name} is {detail.run.status}{reason}"
            raise PlatformError(message, hint=f"osmosis eval logs {run.name}; or submit without --probe")
    return run.name


def probe_config(config: TrainingConfig, rows: int) -> EvalConfig:
    training, sampling, advanced = config.training, config.sampling, config.advanced
    if advanced.engine != "local":
        raise ValidationError(
            f'--probe asks the base model on the platform, and with engine = "{advanced.engine}" it is elsewhere',
            hint="evaluate it there: an eval config with [advanced] base_url, then submit without --probe",
        )
    if advanced.method != "grpo":
        raise ValidationError(f'method = "{advanced.method}" makes no rollouts to probe', hint="submit without --probe")
    named = config.experiment.model_dump(include=set(Experiment.model_fields), exclude_none=True)
    experiment = {**named, "model_path": PLATFORM_MODEL + config.experiment.model_path}
    return EvalConfig(
        experiment=experiment,
        evaluation=Evaluation(
            limit=rows,
            n=min(training.n_samples_per_prompt, 1000),
            batch_size=min(rows * training.n_samples_per_prompt, MAX_PROBE_CONCURRENCY),
            agent_workflow_timeout_s=training.agent_workflow_timeout_s,
            grader_timeout_s=training.grader_timeout_s,
        ),
        advanced={
            "network": advanced.network,
            "params": {
                "temperature": sampling.rollout_temperature,
                "top_p": sampling.rollout_top_p,
                "max_tokens": training.max_response_length,
            },
        },
        program=config.program,
        secrets=config.secrets or Secrets(required=[]),
        env=config.env,
    )


# -- the reward: `osmosis reward test` in a process of its own; a finding is a warning: it may be meant --


def check_reward(ctx: AppContext, root: Path, rollout: str, env: Mapping[str, str]) -> str:
    """Return a line for the plan; warn of worthless answers that earn a reward. `env`: the config's variables."""
    command = [sys.executable, "-m", "osmosis", "reward", "test", rollout, "--json", "--limit", str(REWARD_ROWS)]
    # As if this were the rollout's environment: a submit builds none.
    environ = {**ctx.environ, **env, INSIDE: "none"}
    try:
        done = subprocess.run(
            command, cwd=root, env=environ, capture_output=True, text=True, timeout=REWARD_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"not tried within {REWARD_TIMEOUT_S} s: osmosis reward test {rollout}"
    try:
        scores: list[JsonObject] = json.loads(done.stdout.strip().splitlines()[-1])["data"]["scores"]
    except (IndexError, KeyError, TypeError, ValueError):
        scores = []
    if not scores:
        return f"could not be tried here: osmosis reward test {rollout}"
    findings = [finding for score in scores for finding in score["findings"] if finding["severity"] != "info"]
    findings.sort(key=lambda finding: finding["severity"] != "error")
    for finding in findings[:REWARD_WARNINGS]:
        fix = f" (fix: {finding['fix']})" if finding["fix"] else ""
        ctx.output.warn("REWARD", f"the reward: {finding['what']}{fix}")
    if not findings:
        return f"tried with worthless answers on {scores[0]['rows']} rows: none earns anything"
    return f"{len(findings)} finding{'s' if len(findings) > 1 else ''}: osmosis reward test {rollout}"


def checkpoints(name: TrainName) -> ListResult:
    """List the checkpoints of a training run.

    Example:
        osmosis train show multiply-1
    """
    rows = current().client().trainings.checkpoints(name)
    return ListResult([row.to_dict() for row in rows], CHECKPOINT_COLUMNS, empty="no checkpoints yet")


def metrics(name: TrainName, output: OutputFile = None) -> DetailResult:
    """Show the curves of a training run: first and last value, range, and a sparkline.

    --json and the file of -o have every point.

    Example:
        osmosis train show multiply-1
        osmosis train show multiply-1 -o curves.json
    """
    ctx = current()
    curves = ctx.client().trainings.metrics(name)
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
    client = ctx.client()
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
    names: Annotated[list[str], Argument(help="Two or more training runs", autocompletion=completion.training_runs)],
) -> DetailResult:
    """Compare training runs: rewards, steps, tokens and time, and the config keys that differ.

    Example:
        osmosis train compare multiply-2 multiply-3
        osmosis train compare multiply-2 multiply-3 multiply-4 --json
    """
    names = list(dict.fromkeys(names))
    if len(names) < 2:
        raise UsageError("a comparison needs two training runs", hint=f"osmosis train compare {names[0]} OTHER")
    client = current().client()
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
