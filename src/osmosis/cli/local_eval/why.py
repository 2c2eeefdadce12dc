"""`osmosis eval why RUN`: what a run waits for, while it goes on or after it: of this machine or of the platform."""

from __future__ import annotations

from typing import Annotated

import typer

from osmosis.cli.context import current
from osmosis.cli.drawing import Canvas, Line
from osmosis.cli.platform_run import explained
from osmosis.cli.results import DetailResult, NextStep, clean
from osmosis.cli.run_finder import RunFinder
from osmosis.engine.journal import Journal
from osmosis.engine.why import Why, explain


def why(
    name: Annotated[str, typer.Argument(help="Name of a local run, or its folder, or of a run of the platform.")],
) -> DetailResult:
    """Explain why a run is slow or stuck: what is in flight, where the time goes, what to change.

    Works from another terminal while a local run is going on, even when its event loop is blocked. For a run on the
    platform it reads the status and some of the rollouts.

    Example:

        osmosis eval why nightly
        osmosis eval why latest --json
        osmosis eval why platform:multiply-3
    """
    with RunFinder(current()) as runs:
        found = runs.find(name, of_platform=explained, of_folder=lambda folder: explain(Journal(folder)))
    steps = [NextStep("resume it", command=f"osmosis eval resume {found.name}")] if found.state == "interrupted" else []
    return DetailResult(found.to_dict(), human=lambda console: _draw(console, found), next_steps=steps)


def _draw(console: Canvas, found: Why) -> None:
    of = f" of {found.total:,}" if found.total is not None else ""
    head = f"{found.name}: {found.state}, {found.done:,}{of} rollouts"
    console.print(Line(clean(head), style="bold"))
    if found.per_minute is not None:
        now = f", {found.per_minute_now:.0f} in the last minute" if found.per_minute_now is not None else ""
        console.print(Line(f"{found.per_minute:.1f} rollouts a minute{now}"))
    if found.stages:
        stages = ", ".join(f"{count} {stage}" for stage, count in sorted(found.stages.items(), key=lambda one: -one[1]))
        console.print(Line(clean(f"in flight: {stages}")))
        for who, stage, seconds in found.longest[:3]:
            console.print(Line(clean(f"  {who} in {stage} for {seconds:.0f} s"), style="dim"))
    times = found.times
    if times is not None:
        console.print(
            Line(
                f"time: model {times.model:.0%}, agent and tools {times.agent:.0%}, scoring {times.score:.0%}; "
                f"a rollout takes {times.median_s:.1f} s (p95 {times.p95_s:.1f} s)"
            )
        )
    for reason in found.reasons:
        console.print(Line(clean(f"- {reason.what}"), style="yellow"))
        if reason.fix:
            console.print(Line(clean(f"  {reason.fix}"), style="dim"))
    if not found.reasons:
        console.print(Line("nothing holds it up", style="green"))
