from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from rich.console import Console
from typer import Argument, Option

from osmosis.base.jsonable import JsonObject
from osmosis.cli.core import completion
from osmosis.cli.core.app import takes
from osmosis.cli.core.context import AppContext, current
from osmosis.cli.core.environment import SecretsFile
from osmosis.cli.core.prompts import agree
from osmosis.cli.core.render import print_text
from osmosis.cli.core.results import DetailResult, NextStep
from osmosis.cli.eval.progress import Ending, run_local
from osmosis.cli.eval.resume import load_run
from osmosis.cli.eval.run_sources import LocalRun
from osmosis.cli.eval.show import RolloutPlace
from osmosis.engine.journal import Journal
from osmosis.errors import UsageError, ValidationError
from osmosis.local.branch import begin_branch, check_step, find_branches, is_passed, read_branch, search_steps
from osmosis.local.run_options import parse_model, run_folder
from osmosis.metrics import formats
from osmosis.metrics.fatal_step import Count
from osmosis.records.run.plan import PLATFORM_MODEL, TOOL_RESULT, Branch, ModelSpec, split_model
from osmosis.records.run.report import Branched
from osmosis.records.run.rollout import Usage
from osmosis.sdk.messages import FOLDER, SUFFIX


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
        branch = Branch(run=plan.name, rollout_id=recorded.rollout_id, **identity, step=step, texts=texts)
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


def _choose_model(spec: ModelSpec, text: str) -> ModelSpec:
    is_elsewhere = split_model(text)[1] is not None or text.startswith(("offline/", PLATFORM_MODEL))
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
            texts[TOOL_RESULT] = ctx.path(result[1:]).read_text("utf-8") if result.startswith("@") else result
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"a text cannot be read: {error}", hint="--prompt NAME=FILE --tool-result @FILE") from error
    return texts


def _describe(branched: Branched) -> str:
    chance = formats.interval(branched.interval, formats.percent)
    line = f"step {branched.branch.step}: {branched.passed} of {branched.continuations} passed, {chance}"
    inexact = f"; {branched.inexact} are no true continuations: they differ at step {branched.differs_at_step}"
    return line + (inexact if branched.inexact else "")
