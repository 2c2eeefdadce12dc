"""`osmosis rollout replay`: exits with 1 when the replay fails, even as recorded, or differs from the recording."""

import asyncio
import pdb
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from rich.console import Console
from typer import Argument, Option

from osmosis.base.git import Git, GitError
from osmosis.base.jsonable import JsonObject
from osmosis.cli.agents import continue_inside
from osmosis.cli.core import completion
from osmosis.cli.core.app import takes
from osmosis.cli.core.context import AppContext, SecretsFile, current
from osmosis.cli.core.output import Mode
from osmosis.cli.core.prompts import agree
from osmosis.cli.core.render import print_text
from osmosis.cli.core.results import DetailResult, NextStep, clean
from osmosis.cli.eval.progress import Ending, print_aside, run_local
from osmosis.cli.eval.resume import load_run
from osmosis.cli.eval.run import apply_environment
from osmosis.cli.eval.run_sources import LocalRun, RunFinder
from osmosis.cli.eval.show import RolloutPlace, draw_message, draw_rollout
from osmosis.client import PlatformClient
from osmosis.datasets.scan import read_rows
from osmosis.engine.evaluate import Attempts
from osmosis.engine.journal import Journal
from osmosis.engine.load_agent import close_scorers
from osmosis.engine.task import Task
from osmosis.errors import InteractiveRequired, NotFound, UsageError, ValidationError
from osmosis.llm.cache import ReplayModel, find_parting
from osmosis.local.branch import begin_branch, check_step, find_branches, is_passed, read_branch, search_steps
from osmosis.local.prepare import load_scorers_of
from osmosis.local.prepared_run import load_source
from osmosis.local.run_options import RunOptions, parse_model, run_folder
from osmosis.local.viewing.library import config_of
from osmosis.metrics import formats
from osmosis.metrics.fatal_step import Count
from osmosis.records.run import plan as plans
from osmosis.records.run.report import Branched
from osmosis.records.run.rollout import Rollout, Usage
from osmosis.records.run.rows import Row
from osmosis.sdk.classify import raised
from osmosis.sdk.messages import FOLDER, SUFFIX
from osmosis.workspace.layout import find_workspace

_NEAR = 1


@dataclass(frozen=True)
class Replayed:
    rollout: Rollout
    recorded: Rollout
    row: Row
    row_changed: bool
    errors: Sequence[BaseException]


def replay(
    plan: plans.EvalPlan, options: RunOptions, journal: Path, recorded: Rollout, *, no_limits: bool = False
) -> Replayed:
    """Run the attempt again; `journal` is the folder with its recording, `no_limits` is for a debugger."""
    timeouts = plans.Timeouts(agent_s=None, score_s=None, model_s=None) if no_limits else plan.timeouts
    spec = plans.ModelSpec(name=str(journal), kind="replay", params=plan.model.params)
    plan = plan.model_copy(update={"model": spec, "timeouts": timeouts, "concurrency": 1})
    dataset = options.dataset(plan)
    row = next(read_rows(dataset, plans.Selection(rows=[recorded.row_index]), skip_bad=True), None)
    if row is None:
        raise NotFound(f"{dataset} has no row {recorded.row_index}", hint="put the dataset of the run back")
    changed = recorded.hashes.get("row") not in (None, row.content_hash)
    return asyncio.run(_replayed(plan, options, recorded, row, changed))


async def _replayed(plan: plans.EvalPlan, options: RunOptions, recorded: Rollout, row: Row, changed: bool) -> Replayed:
    errors: list[BaseException] = []
    raised.set(errors)
    source, scorers = load_source(plan, options), load_scorers_of(plan, options)
    model = ReplayModel(plan.model)
    task = Task(row=row, attempt=recorded.attempt, rollout_id=f"replay-{recorded.rollout_id}"[:120], step=recorded.step)
    try:
        async with source.open(plan, model) as agent:
            lines: list[str] = []
            rollout = await Attempts(plan, agent, model, scorers, say=lines.append).run(task)
    finally:
        await model.close()
        await close_scorers(scorers)
    return Replayed(rollout, recorded, row, changed, errors)


@dataclass(frozen=True)
class Recording:
    plan: plans.EvalPlan
    options: RunOptions
    folder: Path
    rollout: Rollout
    run: str


@contextmanager
def recording(
    ctx: AppContext, client: PlatformClient, name: str, position: tuple[int, int], secrets_file: str | None
) -> Iterator[Recording]:
    """Yield the attempt with this workspace's code; raise WorkspaceRequired or, without answers, ValidationError."""
    detail = client.evals.get(name)
    rollout = client.evals.rollout(detail.run.name, *position)
    if not any(message.get("role") == "assistant" for message in rollout.messages):
        where = f"row {position[0]} attempt {position[1]} of {detail.run.name}"
        hint = f"osmosis eval show {detail.run.name} {position[0]}/{position[1]} says why it ended"
        raise ValidationError(f"{where} has no recorded answer of the model: there is nothing to replay", hint=hint)
    workspace, config = find_workspace(ctx.cwd), config_of(detail)
    continue_inside(ctx, workspace.root, config.experiment.rollout)
    apply_environment(ctx, config.env, config.secret_names(), secrets_file)
    with suppress(GitError):
        commit = Git(workspace.root).text("rev-parse", "HEAD").strip()
        if detail.commit_sha and commit != detail.commit_sha:
            message = f"the run was of commit {detail.commit_sha[:10]}; this replays the code that is here"
            ctx.output.say(message, style="dim")
    with TemporaryDirectory(prefix="osmosis-replay-") as temporary:
        folder = Path(temporary)
        (folder / "rollouts.jsonl").write_bytes(rollout.to_line())
        dataset = workspace.local_dataset(config.experiment.dataset)
        if dataset is None:
            named = client.datasets.get(config.experiment.dataset)
            dataset = folder / f"dataset.{named.file_format or 'jsonl'}"
            client.datasets.download(config.experiment.dataset, dataset)
        plan = plans.EvalPlan.from_config(config, name=detail.run.name, dataset=str(dataset))
        options = RunOptions(
            workspace.root,
            None,
            ctx.environ,
            secrets=config.secret_names(),
            rollout=config.experiment.rollout,
            env=config.env,
            needs_scores=False,
        )
        yield Recording(plan, options, folder, rollout, detail.run.name)


def replay_rollout(
    run: Annotated[str, Argument(help="Name of a local run or of a platform's.", autocompletion=completion.runs)],
    place: Annotated[str, Argument(metavar="ROW[/ATTEMPT]", help="Which rollout, counted from 0.")],
    debugger: Annotated[bool, Option("--pdb", help="Open the debugger where agent or score function raised.")] = False,
    whole: Annotated[bool, Option(help="Do not shorten long messages.")] = False,
    secrets_file: SecretsFile = None,
) -> DetailResult:
    """Run one attempt again with the model's recorded answers: no calls, no cost, the same conversation.

    Breakpoints in your code work. When the agent asks for something other than it did in the recording, the replay
    ends and says so. For a run on the platform, the recording is fetched, and the dataset too when it is not in data/;
    the code is that of the workspace.

    Example:
        osmosis rollout replay nightly 12
        osmosis rollout replay nightly 12/2 --pdb
        osmosis rollout replay platform:multiply-3 12
    """
    ctx = current()
    selector = RolloutPlace.parse(place)
    if debugger and not (ctx.mode is Mode.RICH and ctx.stdin.isatty()):
        raise InteractiveRequired("--pdb needs a terminal", hint="remove --pdb, --json and --plain")

    def load_local(folder: Path) -> Recording:
        rollout = LocalRun(folder).find(selector.row, selector.attempt)
        return Recording(*load_run(ctx, str(folder), secrets_file), folder, rollout, folder.name)

    def load_remote(client: PlatformClient, name: str) -> Recording:
        return ctx.closing.enter_context(recording(ctx, client, name, (selector.row, selector.attempt), secrets_file))

    found_run = RunFinder(ctx).find(run, of_folder=load_local, of_platform=load_remote)
    recorded, name = found_run.rollout, found_run.run
    with print_aside():
        replayed = replay(found_run.plan, found_run.options, found_run.folder, recorded, no_limits=debugger)
    if debugger:
        _debug(ctx, replayed)
    part = find_parting(replayed.recorded.messages, replayed.rollout.messages)
    data: JsonObject = {
        "run": name,
        "row_index": selector.row,
        "attempt": selector.attempt,
        "same": part is None,
        "parts_at": part,
        "row_changed": replayed.row_changed,
        "rollout": replayed.rollout.to_dict(),
        "recorded_scores": {name: score.value for name, score in recorded.scores.items()},
    }
    failed = replayed.rollout.failure is not None or part is not None
    return DetailResult(
        data, exit_code=1 if failed else 0, human=lambda console: _draw(console, replayed, name, whole=whole)
    )


def _debug(ctx: AppContext, replayed: Replayed) -> None:
    if not replayed.errors:
        ctx.output.say("nothing was raised: put breakpoint() where you want to stop")
        return
    error = replayed.errors[-1]
    ctx.output.say(f"{type(error).__name__}: {error}", style="red")
    traceback = error.__traceback__
    if traceback is not None:
        pdb.post_mortem(traceback)
    sys.stdout.flush()


def _draw(console: Console, replayed: Replayed, run: str, *, whole: bool) -> None:
    rollout, recorded = replayed.rollout, replayed.recorded
    part = find_parting(recorded.messages, rollout.messages)
    print_text(console, f"replay of {clean(run)} row {recorded.row_index} attempt {recorded.attempt}", "bold")
    if replayed.row_changed:
        print_text(console, "the row was edited since the run", "yellow")
    draw_rollout(console, rollout, expected=replayed.row.ground_truth, whole=whole)
    if part is None:
        print_text(console, "the conversation is the recorded one", "green")
    else:
        print_text(console, f"differs from the recording at message {part}, which was:", "yellow")
        for message in recorded.messages[part : part + _NEAR]:
            draw_message(console, message, whole=whole)
        if part >= len(recorded.messages):
            print_text(console, "(the recording had ended)", "dim")
    for name, score in recorded.scores.items():
        now = rollout.value(name)
        if now != score.value:
            print_text(console, f"{name}: {score.value} then, {now} now", "yellow")


@dataclass(frozen=True)
class BranchFlags:
    run: Annotated[str, Argument(help="Name of a local run.", autocompletion=completion.local_runs)]
    rollout: Annotated[str, Argument(metavar="ROW[/ATTEMPT]", help="Which rollout, counted from 0.")]
    from_step: Annotated[int | None, Option(min=1, help="First step answered anew [the fatal one].")] = None
    n: Annotated[int, Option("--n", "-n", min=1, help="With --from-step: continuations of it.")] = 8
    max_rollouts: Annotated[int, Option(min=1, help="Of a search: continuations in all.")] = 40
    model: Annotated[str | None, Option(help="Another model, NAME or NAME@URL, from the step on.")] = None
    prompt: Annotated[
        list[str] | None,
        Option(metavar="NAME=FILE", help="Text of prompts/NAME.md, or row.system, row.user of the row."),
    ] = None
    tool_result: Annotated[str | None, Option(metavar="TEXT|@FILE", help="Tool result for the step to read.")] = None
    secrets_file: SecretsFile = None


@takes(BranchFlags)
def branch_rollout(flags: BranchFlags) -> DetailResult | int:
    """Continue a local rollout from one of its steps, or find the step at which it was lost.

    A step is an answer of the model, counted from 1 (`osmosis view` numbers them). The agent runs again with recorded
    answers before it, its tools run again in a new sandbox, then the model answers. Each branch is a run, which the
    same command resumes. Without --from-step, steps are tried until it is 95 % certain which one lost it.

    Example:
        osmosis rollout branch nightly 12
        osmosis rollout branch nightly 12/2 --from-step 14 -n 8 --model openai/gpt-5-mini
        osmosis rollout branch nightly 12 --from-step 3 --tool-result "no such file"
        osmosis rollout branch nightly 12 --from-step 1 --prompt system=prompts/careful.md
    """
    ctx, selector, folder = current(), RolloutPlace.parse(flags.rollout), run_folder(flags.run, current().cwd)
    if flags.from_step is None and flags.tool_result is not None:
        raise UsageError("--tool-result is that of one step", hint="--from-step 3")
    recorded = LocalRun(folder).find(selector.row, selector.attempt)
    plan, options = load_run(ctx, str(folder), flags.secrets_file)
    options = replace(options, must_exist=False, needs_scores=False, export=None)
    model = plan.model if flags.model is None else _choose_model(plan.model, flags.model)
    texts = _read_texts(ctx, flags, options.base_dir)
    check_step(recorded, flags.from_step or 1, texts)
    label = f"row {selector.row} attempt {selector.attempt} of {plan.name}"
    if flags.from_step is None and is_passed(recorded, plan):
        raise ValidationError(f"{label} passed: no step lost it", hint="--from-step 3 continues it all the same")
    identity: JsonObject = {"row_index": selector.row, "attempt": selector.attempt}
    measured: dict[int, Branched] = {}

    def measure(step: int, n: int) -> Count:
        branch = plans.Branch(run=plan.name, rollout_id=recorded.rollout_id, **identity, step=step, texts=texts)
        new = begin_branch(plan, model, recorded, branch, n, folder.parent)
        result = run_local(ctx, new, options, Ending(quiet=flags.from_step is None))
        if (result if isinstance(result, int) else result.exit_code) == 130:
            raise KeyboardInterrupt
        measured[step] = read_branch(Journal(folder.parent / new.name))
        if flags.from_step is None:
            ctx.output.say(_describe(measured[step]))
        return measured[step].passed, measured[step].continuations

    n, left = flags.n if flags.from_step else flags.max_rollouts, recorded.own_calls[(flags.from_step or 1) - 1 :]
    rest = sum((call.usage for call in left), Usage())
    ctx.output.say(
        f"{label}: {n} continuations by {model.name}; the recorded rest is "
        f"{formats.count(rest.total_tokens)} tokens, {formats.dollars(rest.cost_usd)}"
    )
    if model.kind != "offline":
        agree(ctx, "Run them?", "rollout.branch")
    fatal = None
    if flags.from_step is not None:
        measure(flags.from_step, flags.n)
    else:
        stored = find_branches(folder.parent, recorded.rollout_id)
        measured |= {b.branch.step: b for b in stored if (b.model, b.branch.texts) == (model.name, texts)}
        counts = {step: (branched.passed, branched.continuations) for step, branched in measured.items()}
        fatal = search_steps(max(1, len(recorded.answers)), counts, measure, flags.max_rollouts)
    branches = [measured[step] for step in sorted(measured)]
    data = {"run": plan.name, **identity, **(fatal.to_dict() if fatal else {})}
    data["branches"] = [branched.to_dict() for branched in branches]
    page = NextStep("the curve on the rollout's page", command=f"osmosis view {plan.name}")

    def draw(console: Console) -> None:
        if fatal is not None:
            print_text(console, f"{label}: {fatal.sentence}", "bold")
        for branched in branches:
            chance = f", lost it {formats.percent(fatal.curve[branched.branch.step - 1].fatal)}" if fatal else ""
            style = "yellow" if branched.inexact else ""
            print_text(console, f"{_describe(branched)}{chance}: {branched.run}", style)

    return DetailResult(data, next_steps=[page], human=draw)


def _choose_model(spec: plans.ModelSpec, text: str) -> plans.ModelSpec:
    is_elsewhere = plans.split_model(text)[1] is not None or text.startswith(("offline/", plans.PLATFORM_MODEL))
    url, key = (None, None) if is_elsewhere else (spec.base_url, spec.api_key_env)
    return parse_model(text, base_url=url, api_key_env=key, params=spec.params)


def _read_texts(ctx: AppContext, flags: BranchFlags, folder: Path) -> dict[str, str]:
    files, result = [text.partition("=") for text in flags.prompt or []], flags.tool_result
    for name, _, _ in files:
        if name not in ("row.system", "row.user") and not any(folder.rglob(f"{FOLDER}/{name}{SUFFIX}")):
            message = f"--prompt {name}: there is no {FOLDER}/{name}{SUFFIX} in {folder}"
            raise UsageError(message, hint="row.system=FILE and row.user=FILE change the row's own texts")
    try:
        texts = {name: ctx.path(file).read_text("utf-8") for name, _, file in files}
        if result is not None:
            texts[plans.TOOL_RESULT] = ctx.path(result[1:]).read_text("utf-8") if result.startswith("@") else result
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"a text cannot be read: {error}", hint="--prompt NAME=FILE --tool-result @FILE") from error
    return texts


def _describe(branched: Branched) -> str:
    chance = formats.interval(branched.interval, formats.percent)
    line = f"step {branched.branch.step}: {branched.passed} of {branched.continuations} passed, {chance}"
    inexact = f"; {branched.inexact} are no true continuations: they differ at step {branched.differs_at_step}"
    return line + (inexact if branched.inexact else "")
