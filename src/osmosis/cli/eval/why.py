from datetime import datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from osmosis.cli.core import completion
from osmosis.cli.core.context import current
from osmosis.cli.core.results import DetailResult, NextStep, clean
from osmosis.cli.eval.bisect import MaxRollouts, Rows, ScoreName, eval_bisect
from osmosis.cli.targets import RunFinder
from osmosis.client import PlatformClient
from osmosis.engine.journal import Journal
from osmosis.engine.output.diagnose import Why, explain, explain_sample
from osmosis.local.viewing.remote_run import config_of
from osmosis.records.run.plan import EvalPlan

SAMPLE = 40


def why(
    name: Annotated[
        str,
        typer.Argument(
            help="Name of a local run, or its folder, or of a run of the platform.", autocompletion=completion.runs
        ),
    ],
    worse: Annotated[
        str | None,
        typer.Argument(metavar="[BAD]", help="A later, worse local run.", autocompletion=completion.local_runs),
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
    with RunFinder(current()) as runs:
        explanation = runs.find(name, of_platform=explain_remote, of_folder=lambda folder: explain(Journal(folder)))
    steps = (
        [NextStep("resume it", command=f"osmosis eval resume {explanation.name}")]
        if explanation.state == "interrupted"
        else []
    )
    return DetailResult(explanation.to_dict(), human=lambda console: _draw(console, explanation), next_steps=steps)


def _draw(console: Console, explanation: Why) -> None:
    of = f" of {explanation.total:,}" if explanation.total is not None else ""
    head = f"{explanation.name}: {explanation.state}, {explanation.done:,}{of} rollouts"
    console.print(Text(clean(head), style="bold"))
    # A rate over seconds would be an extrapolation.
    if explanation.per_minute and (explanation.state == "running" or explanation.done > explanation.per_minute / 10):
        now = f", {explanation.per_minute_now:.0f} in the last minute" if explanation.per_minute_now is not None else ""
        console.print(Text(f"{explanation.per_minute:.1f} rollouts a minute{now}"))
    if explanation.stages:
        stages = ", ".join(
            f"{count} {stage}" for stage, count in sorted(explanation.stages.items(), key=lambda item: -item[1])
        )
        console.print(Text(clean(f"in flight: {stages}")))
        for label, stage, seconds in explanation.longest[:3]:
            console.print(Text(clean(f"  {label} in {stage} for {seconds:.0f} s"), style="dim"))
    times = explanation.times
    if times is not None:
        console.print(
            Text(
                f"time: model {times.model:.0%}, agent and tools {times.agent:.0%}, scoring {times.score:.0%}; "
                f"a rollout takes {times.median_s:.1f} s (p95 {times.p95_s:.1f} s)"
            )
        )
    for reason in explanation.reasons:
        console.print(Text(clean(f"- {reason.what}"), style="yellow"))
        if reason.fix:
            console.print(Text(clean(f"  {reason.fix}"), style="dim"))
    if not explanation.reasons:
        console.print(Text("nothing holds it up", style="green"))


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
