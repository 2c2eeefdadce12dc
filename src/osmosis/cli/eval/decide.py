"""`osmosis eval decide`: questions about models and arms, answered by runs that grow until they are."""

import math
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated
from urllib.parse import urljoin

from typer import Argument, Option

from osmosis.base.jsonable import JsonObject
from osmosis.cli.core import completion
from osmosis.cli.core.app import takes
from osmosis.cli.core.context import AppContext, SecretsFile, current
from osmosis.cli.core.prompts import agree
from osmosis.cli.core.results import Column, ListResult, NextStep, OperationResult, build_columns
from osmosis.cli.eval import submit_checks
from osmosis.cli.eval.plan import apply_changes, is_config_key, read_arms
from osmosis.cli.eval.run import find_dataset
from osmosis.cli.eval.set import SetLine, build_command, run_process
from osmosis.cli.eval.submit_checks import PlatformAnswers, SubmitCase, SubmitOptions
from osmosis.errors import NetworkError, UsageError
from osmosis.local.decide import StudyRuns
from osmosis.local.run_options import check_name, runs_folder
from osmosis.metrics.decide import Growth, announce, begin_study, slug
from osmosis.metrics.intervals import ALPHA
from osmosis.records.api.runs import NewDecision
from osmosis.records.config.run_config import EvalConfig
from osmosis.records.run.history import EvalSet, SetRun
from osmosis.records.run.study import Study, StudyLimits
from osmosis.workspace.config_file import load_eval_config
from osmosis.workspace.git import read_source
from osmosis.workspace.layout import Workspace, find_workspace, pick_config


@dataclass(frozen=True)
class DecideFlags:
    words: Annotated[
        list[str],
        Argument(metavar="[QUESTION]...", help='"A >= B - 0.02": models, or values of arms', show_default=False),
    ] = field(default_factory=list)
    arm: Annotated[
        list[str],
        Option(
            metavar="NAME=VALUE,VALUE",
            help="What to vary: model, config, prompt (names of prompts/NAME.md), a sampling parameter, a variable "
            "that the rollout reads, a key of the config (env.NAME) or of --set. A value without a question is "
            "compared with the first. Repeatable.",
        ),
    ] = field(default_factory=list)
    config: Annotated[
        str | None,
        Option("--config", "-c", help="Config [default: the only]", autocompletion=completion.configs_of("eval")),
    ] = None
    max_cost: Annotated[float | None, Option(help="Spend at most this many USD, all arms together.")] = None
    max_rollouts: Annotated[int | None, Option(min=2, help="Run at most N [each row once in each arm].")] = None
    limit: Annotated[int | None, Option(min=2, help="Only the first N rows of the dataset.")] = None
    score: Annotated[str | None, Option(help="Score that the questions are about [default: the primary one].")] = None
    name: Annotated[str | None, Option(help="Name of this decision and its runs [default: from the question].")] = None
    submit: Annotated[bool, Option("--submit", help="Let the platform carry it on, from the synced HEAD")] = False
    wait: Annotated[bool, Option("--wait", "-w", help="With --submit: follow it until it is over")] = False
    stop: Annotated[str | None, Option(metavar="NAME", help="Stop one on the platform; its command goes on")] = None
    secrets_file: SecretsFile = None


@takes(DecideFlags)
def decide(flags: DecideFlags) -> ListResult | OperationResult:
    r"""Answer questions about models and arms with as few rollouts as it takes.

    Says first what can be decided with the rows and the budget. Then all arms run over the same few rows, and more of
    them until each question has an answer, or the rest of the budget would hardly give one. All answers together are
    wrong in at most 5 % of decisions. Each arm differs in one thing from the first values of all of them. After an
    interruption the same command goes on. With --submit, the platform carries it on while this machine is off, and the
    same command shows how far it is.

    Example:
        osmosis eval decide "qwen3 >= gpt-5-mini - 0.02" --max-cost 20
        osmosis eval decide --arm tools=on,off --arm prompt=task,terse,examples --max-rollouts 2000
        osmosis eval decide "terse >= task" --arm prompt=task,terse --arm temperature=0,1 -c support --json
        osmosis eval decide --arm tools=on,off --submit --wait
        osmosis eval decide --stop multiply-tools-off-tools-on
    """
    ctx = current()
    if flags.stop is not None:
        agree(ctx, f"Stop decision {flags.stop} and its runs?", "eval.decide", name=flags.stop)
        ctx.client().evals.stop_decision(flags.stop)
        return OperationResult("eval.decide", f"decision {flags.stop} is stopped; its runs stay", {"name": flags.stop})
    if flags.max_cost is not None and not 0 < flags.max_cost < math.inf:
        raise UsageError(f"--max-cost must be greater than 0, got {flags.max_cost}")
    workspace = find_workspace(ctx.cwd)
    path = ctx.path(pick_config(workspace, "eval", flags.config))
    config, _ = load_eval_config(path, workspace.root, to_run=True)
    rollout = config.experiment.rollout
    questions, arms = read_arms(flags.words, flags.arm, config, workspace.root / "rollouts" / rollout)
    name = check_name(flags.name or slug(f"{rollout}-{questions[0].text}"), "--name")
    limits = StudyLimits.model_validate({key: getattr(flags, key) for key in StudyLimits.model_fields})
    facts = asdict(replace(flags, name=None, secrets_file=None, submit=False, wait=False, stop=None))
    draft = Study(name=name, questions=questions, arms=arms, limits=limits, facts=facts)
    if flags.submit:
        configs = {label: _apply_arm(workspace, config, changes) for label, changes in arms.items()}
        return _submit(workspace, path, config, NewDecision(study=draft, configs=configs), wait=flags.wait)
    runs = StudyRuns(runs_folder(ctx.cwd), ctx.output.say)
    study = runs.open(draft, find_dataset(ctx, workspace, config, None), ctx.cwd)
    if study.due is not None:
        for line in announce(study):
            ctx.output.say(line)
        agree(ctx, "Run them until every question is decided?", "eval.decide", name=name)
    for growth in runs.growths():
        _grow(ctx, growth, study.arms[growth.arm], workspace.relative(path), flags.secrets_file)
    decided = runs.result()
    ctx.output.say(str(decided).rpartition("\n")[2])
    names = list(dict.fromkeys(decided.runs.values()))
    step = NextStep("look at it row by row", command=f"osmosis eval compare {' '.join(names[:2])}")
    items = [{"question": q.text, **q.model_dump(mode="json")} for q in decided.questions]
    return ListResult(items, COLUMNS, extra=decided.to_dict(), next_steps=[step])


def _grow(ctx: AppContext, growth: Growth, changes: JsonObject, config: str, secrets_file: str | None) -> None:
    """Make all attempts at all rows that are missing; raise KeyboardInterrupt where it stops before."""
    settings = dict(changes)
    config, model = settings.pop("config", config), settings.pop("model", None)
    line = SetLine(SetRun(growth.run, config, model, {}, settings, growth.run), growth.run, None)
    words = build_command(EvalSet(configs=[config], n=growth.attempts), line, growth.left, secrets_file)
    interrupted, growth.error = run_process(ctx, [*words, "--rows", ",".join(map(str, growth.rows))])
    if interrupted:
        raise KeyboardInterrupt


def _apply_arm(workspace: Workspace, config: EvalConfig, changes: JsonObject) -> JsonObject:
    """Return the body of a submit; raise UsageError for what only local runs have."""
    settings = dict(changes)
    if (own := settings.pop("config", None)) is not None:
        config, _ = load_eval_config(workspace.root / pick_config(workspace, "eval", own), workspace.root)
    model = settings.pop("model", None)
    if local := [key for key in settings if not is_config_key(key)]:
        hint = "vary a key of the config, such as evaluation.KEY, or leave out --submit"
        raise UsageError(f"--arm {local[0]} is an option of local runs", hint=hint)
    config = apply_changes(config, [f"{key}={value}" for key, value in settings.items()])
    return SubmitOptions("eval", model=model).apply(config).to_request({})


def _submit(workspace: Workspace, path: Path, config: EvalConfig, body: NewDecision, *, wait: bool) -> ListResult:
    ctx, options = current(), SubmitOptions("eval", wait_sync=True)
    client = ctx.client()
    answers, source = PlatformAnswers.ask(client, config), read_source(workspace.root)
    case = SubmitCase(ctx, options, client, workspace, path, config, source, answers)
    submit_checks.check_scope(case)
    if errors := submit_checks.check_code(case):
        raise submit_checks.explain_refusal(case, errors)
    draft = body.study
    stored = next(iter(client.evals.decisions(draft.name)), None)
    if stored is None or stored.status == "stopped":
        rows = range(answers.datasets["experiment"].result().row_count or 0)[: draft.limits.limit]
        for line in announce(stored.study if stored else begin_study(draft, rows)):
            ctx.output.say(line)
        agree(ctx, "Let the platform run them until every question is decided?", "eval.decide", name=draft.name)
    decision = client.evals.decide(body)
    while wait and decision.status == "running":
        time.sleep(1.0)
        with suppress(NetworkError):  # while the platform starts again
            decision = client.evals.decisions(draft.name)[0]
    url = urljoin(client.url, decision.url)
    study, status = decision.study, decision.status
    looks = f"{sum(stage.done for stage in study.stages)} of {len(study.stages)} looks"
    ctx.output.say(f"{draft.name} is {status} after {looks}: {url} {decision.problem}".rstrip())
    runs = {label: [run.name for run in decision.runs[name]] for label, name in study.runs.items()}
    extra: JsonObject = {"name": draft.name, "status": status, "problem": decision.problem, "url": url, "runs": runs}
    extra |= {**decision.spent, "planned_rollouts": study.planned_rollouts, "error_rate": ALPHA}
    items = [{"question": q.text, **q.model_dump(mode="json")} for q in study.questions]
    return ListResult(items, COLUMNS, extra=extra, exit_code=int(status == "stopped"))


COLUMNS = [
    *build_columns("question=question", "answer=answer"),
    Column("difference", "difference", "right", show=lambda value: "" if value is None else f"{value:+.3f}"),
    Column("interval", "interval", show=lambda pair: "{:+.3f} to {:+.3f}".format(*pair) if pair else ""),
    *build_columns(">rows=rows", "reason=reason"),
]
