"""`osmosis reward test`: exits with 1 when a worthless answer earns more than `--allow`, or nothing can be told."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from rich.console import Console
from typer import Argument, Option

from osmosis.cli.agents import AgentRef, find_agent
from osmosis.cli.core import completion
from osmosis.cli.core.app import new_app, takes
from osmosis.cli.core.context import AppContext, current
from osmosis.cli.core.render import print_text, table
from osmosis.cli.core.results import Column, DetailResult, NextStep, build_columns
from osmosis.datasets.scan import read_rows, scan_dataset
from osmosis.engine.reward_audit import load_reward, try_reward
from osmosis.errors import UsageError, ValidationError
from osmosis.metrics.reward_audit import ALLOWED, Battery, Probed
from osmosis.records.run.plan import Selection

ROWS = 50
JUDGED_ROWS = 5
AT_ONCE = 8
SAY_EVERY_S = 3.0

app = new_app(
    help="""Test a reward before training with it.

    Example:
        osmosis reward test rewards:exact -d data.jsonl
    """
)


@app.callback()
def _group() -> None: ...


@dataclass(frozen=True)
class RewardFlags:
    reward: Annotated[
        str | None,
        Argument(
            metavar="REWARD",
            help="A score function or grader (module:name), rubric:FILE#ID, or a rollout of the workspace.",
            autocompletion=completion.rollouts,
        ),
    ] = None
    dataset: Annotated[Path | None, Option("--dataset", "-d", help="Dataset [default: the rollout's].")] = None
    limit: Annotated[int | None, Option(min=2, help=f"Rows to try [{ROWS}; {JUDGED_ROWS} for a rubric].")] = None
    form: Annotated[list[str], Option(help="Format of a correct answer, such as 'Final: {answer}'. Repeatable.")] = (
        field(default_factory=list)
    )
    allow: Annotated[float, Option(min=0.0, max=1.0, help="Share of the reward a worthless answer may earn.")] = ALLOWED
    score: Annotated[str | None, Option(help="For a function with several named scores: test only this one.")] = None
    timeout: Annotated[float, Option(min=0.001, help="Seconds for one score.")] = 150.0


@app.command("test")
@takes(RewardFlags)
def test(flags: RewardFlags) -> DetailResult:
    """Test a reward with answers that should earn nothing: empty, constant, another row's, praise for the judge.

    Each is compared with the best form of the ground truth. Exits with 1 when a worthless answer earns a reward.

    Example:
        osmosis reward test rewards:exact -d data.jsonl
        osmosis reward test multiply
        osmosis reward test rewards:boxed -d data.jsonl --form 'So it is {answer}' --allow 0.1
    """
    ctx = current()
    wrong = next((form for form in flags.form if "{answer}" not in form), None)
    if wrong is not None:
        raise UsageError(f"--form {wrong!r} does not hold {{answer}}", hint="--form 'Final: {answer}'")
    if flags.reward is not None and ":" in flags.reward:
        ref = AgentRef(flags.reward, ctx.cwd, module=flags.reward)
    else:
        ref = find_agent(ctx, flags.reward, None)
    data = ctx.path(str(flags.dataset)) if flags.dataset else ref.dataset
    if data is None:
        raise UsageError("missing option -d/--dataset", hint="-d data.jsonl")
    if not data.is_file():
        raise ValidationError(f"no such dataset: {data}", hint="-d data.jsonl")
    assert ref.module is not None
    scorer = load_reward(ref.module, ref.base_dir, timeout_s=flags.timeout, environ=ctx.environ)
    judged = ref.module.startswith("rubric:")
    limit = flags.limit or (JUDGED_ROWS if judged else ROWS)
    facts = scan_dataset(data, Selection())
    facts.refuse_bad(data)
    step = max(1, facts.selected // limit)
    rows = [row for i, row in enumerate(read_rows(data, Selection())) if i % step == 0][:limit]
    if len(rows) < 2:
        raise ValidationError(f"{data} has {len(rows)} rows; at least 2 are needed", hint="use a larger dataset")
    at_once, report = AT_ONCE if judged else 1, _progress(ctx, ref.label)
    tries = try_reward(scorer, rows, forms=flags.form, allowed=flags.allow, concurrency=at_once, on_progress=report)
    batteries = _chosen(asyncio.run(tries), flags.score)
    free = any(battery.free for battery in batteries)
    scores = [battery.to_dict() for battery in batteries]
    steps = [NextStep("read how each answer is made", command="osmosis reward test --help")] if free else []
    return DetailResult(
        {"reward": ref.label, "dataset": str(data), "free": free, "scores": scores},
        exit_code=1 if free else 0,
        human=lambda console: _draw(console, ref.label, data, batteries),
        next_steps=steps,
    )


def _chosen(batteries: list[Battery], score: str | None) -> list[Battery]:
    if score is None:
        return batteries
    matching = [battery for battery in batteries if score in (battery.score, battery.score.rpartition(".")[2])]
    if not matching:
        names = ", ".join(battery.score for battery in batteries)
        raise UsageError(f"there is no score {score!r}: {names}", hint=f"--score {batteries[0].score}")
    return matching


def _progress(ctx: AppContext, label: str) -> Callable[[int, int], None]:
    last_report = time.monotonic()

    def report(done: int, of: int) -> None:
        nonlocal last_report
        if time.monotonic() - last_report > SAY_EVERY_S:
            last_report = time.monotonic()
            ctx.output.say(f"{label}: {done} of {of} answers scored", style="dim")

    return report


def _draw(console: Console, label: str, data: Path, batteries: list[Battery]) -> None:
    for battery in batteries:
        name = label if len(batteries) == 1 else battery.score
        best = "-" if battery.best is None else f"{battery.best:.3g}"
        floor = "-" if battery.floor is None else f"{battery.floor:.3g}"
        print_text(console, f"{name} on {battery.rows} rows of {data.name}", "bold")
        print_text(console, f"the best answers earn {best}, the least of the worthless ones {floor}")
        print_text(console, f"one score takes {battery.median_ms:.2g} ms, the slowest took {battery.slowest_ms:.2g} ms")
        console.print()
        console.print(table(_COLUMNS, [_build_row(probe) for probe in battery.tried], width=console.width))
        console.print()
        for finding in battery.findings:
            style = {"error": "red", "warning": "yellow"}.get(finding.severity, "dim")
            print_text(console, f"{finding.severity}: {finding.what}", style)
            if finding.fix:
                print_text(console, f"  {finding.fix}", "dim")
        if not battery.findings:
            print_text(console, "nothing that was tried earns the reward for nothing", "green")
        console.print()


def _build_row(probe: Probed) -> dict[str, object]:
    return {
        "name": probe.name,
        "mean": "-" if probe.mean is None else f"{probe.mean:.3g}",
        "range": "-" if probe.low is None else f"{probe.low:.3g} .. {probe.high:.3g}",
        "share": "-" if probe.share is None else f"{probe.share:.0%}",
        "failed": probe.failed or "",
        "rows": probe.rows,
    }


_COLUMNS = (
    *build_columns("name=answer", ">mean=mean", ">range=range", ">share=share of the reward", ">failed=failed"),
    Column("rows", "rows", "right", wide=True),
)
