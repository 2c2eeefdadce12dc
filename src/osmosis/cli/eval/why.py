from datetime import datetime
from typing import Annotated

from rich.console import Console
from typer import Argument, Option

from osmosis.cli.core import completion
from osmosis.cli.core.context import current
from osmosis.cli.core.render import print_text, table
from osmosis.cli.core.results import DetailResult, NextStep, build_columns
from osmosis.cli.eval.plan import parse_rows
from osmosis.cli.eval.run_sources import RunFinder
from osmosis.client import PlatformClient
from osmosis.engine.journal import Journal
from osmosis.engine.output.diagnose import Why, explain, explain_sample
from osmosis.errors import UsageError, ValidationError
from osmosis.local.bisect import BisectResult, bisect
from osmosis.local.resume_at_commit import commit_of
from osmosis.local.run_options import run_folder
from osmosis.local.viewing.library import config_of
from osmosis.metrics.compare import compare
from osmosis.metrics.formats import duration
from osmosis.records.run.plan import EvalPlan

MOST_ROWS = 20
_LIKELY = 3
Rows = Annotated[str | None, Option(help=f"Of two runs: rows 3,7,10-20 [default: lost rows, at most {MOST_ROWS}].")]
ScoreName = Annotated[str | None, Option(help="Of two runs: score to look at [default: the first in both].")]
MaxRollouts = Annotated[int | None, Option(min=1, help="Of two runs: all rollouts [default: 40 times one step's].")]


def eval_bisect(good: str, bad: str, rows: str | None, score: str | None, max_rollouts: int | None) -> DetailResult:
    ctx = current()
    first, second = Journal(run_folder(good, ctx.cwd)), Journal(run_folder(bad, ctx.cwd))
    for journal in (first, second):
        commit_of(journal)
    plan = first.plan()
    comparison = compare(first.rollouts(), second.rollouts(), threshold=plan.pass_threshold, score=score)
    lost = sorted({flip.row_index for flip in comparison.flips if not flip.gained})[:MOST_ROWS]
    row_indices = lost if rows is None else parse_rows(rows)
    if not row_indices:
        message = f"no row passed in {good} and fails in {bad}"
        raise ValidationError(message, hint="name rows that got worse: --rows 3,7")
    if len(row_indices) != len(set(row_indices)):
        raise UsageError("--rows names a row twice")
    ctx.output.say(f"bisecting {len(row_indices)} rows: {', '.join(map(str, row_indices[:10]))}")
    result = bisect(
        first, second, row_indices, comparison.score, environ=ctx.environ, say=ctx.output.say, max_rollouts=max_rollouts
    )
    steps = [NextStep("what it changed", command=f"git show {commit[:10]}") for commit, _ in result.first_bad[:1]]
    return DetailResult(result.to_dict(), human=lambda console: _draw_bisect(console, result), next_steps=steps)


def _draw_bisect(console: Console, result: BisectResult) -> None:
    for commit, subject in result.first_bad:
        is_single = len(result.first_bad) == 1
        head = "the first bad commit" if is_single else "one of these, of which those between cannot be scored"
        print_text(console, f"{head}: {commit[:10]} {subject}", "bold")
    if not result.first_bad:
        print_text(console, f"no commit is certain after {result.rollouts:,} rollouts; more: --max-rollouts", "bold")
    for commit, subject, chance in result.chances[:_LIKELY]:
        share = f"{chance:.1%}" if chance < 0.9995 else "above 99.9%"
        print_text(console, f"P({commit[:10]}) = {share}  {subject}")
    print_text(console, f"{result.score}: {result.good_mean:.3f} before, {result.bad_mean:.3f} after")
    table_rows = [
        {
            "commit": trial.commit[:10],
            "subject": trial.subject,
            "mean": "cannot be scored" if trial.mean is None else f"{trial.mean:.3f}",
            "verdict": {True: "bad", False: "good", None: "passed over"}[trial.bad],
        }
        for trial in result.tried
    ]
    columns = build_columns("commit=commit", f">mean={result.score}", "verdict=", "subject=")
    console.print(table(columns, table_rows, width=console.width))


SAMPLE = 40


def why(
    name: Annotated[str, Argument(help="A local run, its folder, or the platform's.", autocompletion=completion.runs)],
    worse: Annotated[
        str | None, Argument(metavar="[BAD]", help="A later, worse one.", autocompletion=completion.local_runs)
    ] = None,
    rows: Rows = None,
    score: ScoreName = None,
    max_rollouts: MaxRollouts = None,
) -> DetailResult:
    """Explain why a run is slow or stuck: what is in flight, where the time goes, what to change.

    Works from another terminal while a local run is going on, even when its event loop is blocked. For a run on the
    platform it reads the status and some of the rollouts. With a second local run, find the commit between the two that
    turned rows from passing to failing: both ends are measured again, each step runs those rows with the code of one
    commit, in a worktree, until one commit is 95 % certain; finished steps are kept.

    Example:
        osmosis eval why nightly
        osmosis eval why latest --json
        osmosis eval why platform:multiply-3
        osmosis eval why tuesday friday
    """
    if worse is not None:
        return eval_bisect(name, worse, rows, score, max_rollouts)
    explanation = RunFinder(current()).find(
        name, of_platform=explain_remote, of_folder=lambda folder: explain(Journal(folder))
    )
    resume = NextStep("resume it", command=f"osmosis eval resume {explanation.name}")
    steps = [resume] if explanation.state == "interrupted" else []
    return DetailResult(explanation.to_dict(), human=lambda console: _draw(console, explanation), next_steps=steps)


def _draw(console: Console, explanation: Why) -> None:
    of = f" of {explanation.total:,}" if explanation.total is not None else ""
    print_text(console, f"{explanation.name}: {explanation.state}, {explanation.done:,}{of} rollouts", "bold")
    # A rate over seconds would be an extrapolation.
    if explanation.per_minute and (explanation.state == "running" or explanation.done > explanation.per_minute / 10):
        now = f", {explanation.per_minute_now:.0f} in the last minute" if explanation.per_minute_now is not None else ""
        print_text(console, f"{explanation.per_minute:.1f} rollouts a minute{now}")
    if explanation.stages:
        stages = ", ".join(
            f"{count} {stage}" for stage, count in sorted(explanation.stages.items(), key=lambda item: -item[1])
        )
        print_text(console, f"in flight: {stages}")
        for label, stage, seconds in explanation.longest[:3]:
            print_text(console, f"  {label} in {stage} for {seconds:.0f} s", "dim")
    times = explanation.times
    if times is not None:
        shares = f"model {times.model:.0%}, agent and tools {times.agent:.0%}, scoring {times.score:.0%}"
        took = f"a rollout takes {duration(times.median_s * 1000)} (p95 {duration(times.p95_s * 1000)})"
        print_text(console, f"time: {shares}; {took}")
    for reason in explanation.reasons:
        print_text(console, f"- {reason.what}", "yellow")
        if reason.fix:
            print_text(console, f"  {reason.fix}", "dim")
    if not explanation.reasons:
        print_text(console, "nothing holds it up", "green")


def explain_remote(client: PlatformClient, name: str) -> Why:
    detail = client.evals.get(name)
    run = detail.run
    done, total = detail.counted
    ends, places = [], []
    for outcome in client.evals.outcomes(run.name):
        if outcome.started_at is not None:
            ends.append(outcome.started_at.timestamp() + (outcome.duration_ms or 0.0) / 1000)
        places.append(outcome.place)
    step = max(1, len(places) // SAMPLE)
    sample = [client.evals.rollout(run.name, *position).to_dict() for position in places[::step][:SAMPLE]]
    plan = EvalPlan.from_config(config_of(detail), name=run.name, dataset="")
    began = _seconds(run.started_at)
    until = _seconds(run.completed_at) if run.over else None
    return explain_sample(
        run.name,
        "over" if run.over else "pending" if run.status == "pending" else "running",
        sample,
        ends,
        done=max(done, len(places)),
        total=total or None,
        began=began,
        until=until,
        concurrency=plan.concurrency,
        stage=detail.stage,
        failure=detail.failure.message if detail.failure else None,
    )


def _seconds(moment: str | datetime | None) -> float | None:
    if moment is None:
        return None
    return (datetime.fromisoformat(moment) if isinstance(moment, str) else moment).timestamp()
