import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated

from rich.console import Console
from typer import Argument, Option

from osmosis.base.jsonable import JsonObject
from osmosis.cli.core import completion
from osmosis.cli.core.context import current
from osmosis.cli.core.render import print_text, table
from osmosis.cli.core.results import DetailResult, build_columns
from osmosis.cli.eval.run_sources import RunFinder, open_run
from osmosis.errors import UsageError, ValidationError
from osmosis.local.quarantine_file import file_around, read
from osmosis.metrics import formats
from osmosis.metrics.compare import compare as compare_runs
from osmosis.metrics.planning import MOST_ROWS, Pilot, forecast, pilot_of, scores_by_row
from osmosis.records.run.rollout import Rollout, RolloutStatus

ATTEMPTS = (1, 2, 4, 8)


def plan(
    run: Annotated[str, Argument(help="A run over some rows: its name or folder", autocompletion=completion.runs)],
    other: Annotated[str | None, Argument(help="Another agent's run over them", autocompletion=completion.runs)] = None,
    difference: Annotated[float, Option(help="The difference that matters, in points of the score.")] = 0.03,
    score: Annotated[str | None, Option(help="Score to plan for [default: the primary one].")] = None,
    concurrency: Annotated[int, Option(min=1, help="Rollouts in flight, for the time.")] = 8,
) -> DetailResult:
    """Plan how many rows and attempts show a difference between two runs, and what they cost.

    The figures are for a comparison of two runs over the same rows that finds the difference in 80 % of cases, with 5 %
    false verdicts. A run with several attempts tells how much attempts at one row vary; two runs tell how differently
    their rows change.

    Example:
        osmosis eval plan nightly-1 --difference 0.05
        osmosis eval plan gpt-5-mini-1 qwen3-1 --json
    """
    if not 0 < difference < math.inf:
        raise UsageError(f"--difference must be greater than 0, got {difference}")
    ctx = current()
    runs = RunFinder(ctx)
    stored = [open_run(runs, name) for name in (run, other) if name is not None]
    aside = read(file_around(ctx.cwd)).of([each.dataset for each in stored]).active
    score = score or stored[0].primary
    bounds = stored[0].score_bounds
    sides = [[r for r in each.outcomes() if r.status is not RolloutStatus.SKIPPED] for each in stored]
    sides = [[r for r in rollouts if r.row_key not in aside] for rollouts in sides]
    changes: list[float] = []
    if other is not None:
        threshold = stored[0].pass_threshold
        pairs = compare_runs(*sides, threshold=threshold, score=score, bounds=bounds)
        changes, score = [after - before for _, before, after in pairs.by_row], pairs.score
    names = list(dict.fromkeys(name for rollout in sides[0] for name in rollout.scores))
    score = score or next(iter(names), "reward")
    if score not in names:
        raise ValidationError(f"{run} has no score {score}", hint=f"--score, one of: {', '.join(names) or 'none'}")
    pilot = pilot_of([list(scores_by_row(rollouts, score).values()) for rollouts in sides], changes, bounds.get(score))
    data = _data_of(pilot, score, difference, sides, concurrency)
    return DetailResult(data, human=lambda console: _draw(console, ", ".join(each.name for each in stored), data))


def _data_of(pilot: Pilot, score: str, difference: float, sides: list[list[Rollout]], concurrency: int) -> JsonObject:
    first = list({rollout.row_index: rollout for rollout in reversed(sides[0])}.values())
    have = sum(map(len, sides))
    options: list[JsonObject] = []
    for attempts in ATTEMPTS:
        rows = pilot.rows_needed(difference, attempts)
        option: JsonObject = {"attempts": attempts, "rows": rows}
        if rows is not None:
            left = max(0, 2 * rows * attempts - have)
            option |= {"rollouts": 2 * rows * attempts, **forecast(first, left, concurrency, attempts).to_dict()}
        options.append(option)
    return {
        "score": score,
        "difference": difference,
        **{key: value for key, value in asdict(pilot).items() if key not in ("extremes", "declared")},
        "could_show": pilot.detectable(pilot.rows, pilot.attempts),
        "could_show_twice_the_rows": pilot.detectable(2 * pilot.rows, pilot.attempts),
        "could_show_twice_the_attempts": pilot.detectable(pilot.rows, 2 * pilot.attempts),
        "attempts_needed": pilot.attempts_needed(difference, pilot.rows),
        "options": options,
    }


def _line_of(option: JsonObject) -> JsonObject:
    if option["rows"] is None:
        return {"attempts": option["attempts"], "rows": f"more than {MOST_ROWS:,}"}
    return {
        "attempts": option["attempts"],
        **{key: f"{option[key]:,}" for key in ("rows", "rollouts")},
        "cost": _between(option, "cost_usd", formats.dollars),
        "time": _between(option, "seconds", lambda value: formats.duration(value and value * 1000)),
    }


def _or_more(difference: float | None) -> str:
    return f"{formats.score(difference)} or more" if difference is not None else "nothing"


def _between(option: JsonObject, name: str, write: Callable[[float | None], str]) -> str:
    interval = option[f"{name}_ci"]
    between = f" ({write(interval[0])} to {write(interval[1])})" if interval else ""
    return f"{write(option[name])}{between}"


def _draw(console: Console, names: str, data: JsonObject) -> None:
    rows, attempts, difference, needed = (data[key] for key in ("rows", "attempts", "difference", "attempts_needed"))
    have = f"{rows:,} rows x {attempts:.3g}"
    print_text(console, f"{names}: {have}, {data['score']}", "bold")
    if attempts == 1:
        print_text(console, "one attempt a row: attempts are taken to vary as rows do; osmosis eval run --n 3 tells")
    else:
        spreads = (formats.score(math.sqrt(data[name])) for name in ("between", "within"))
        print_text(console, "standard deviation {} from row to row, {} from attempt to attempt".format(*spreads))
    print_text(console, f"{have} could show a difference of {_or_more(data['could_show'])}")
    more_rows, more_attempts = data["could_show_twice_the_rows"], data["could_show_twice_the_attempts"]
    better = "row" if (more_rows or math.inf) <= (more_attempts or math.inf) else "attempt"
    twice = f"twice the rows: {_or_more(more_rows)}; twice the attempts: {_or_more(more_attempts)}"
    print_text(console, f"{twice}: another {better} is the better spend")
    alone = f"show {difference:g} with {needed:,} attempts at each" if needed else f"alone cannot show {difference:g}"
    print_text(console, f"these {rows:,} rows {alone}")
    print_text(console, f"to show {difference:g} with two runs:", "bold")
    columns = build_columns("attempts=attempts", "rows=rows", "rollouts=rollouts", "cost=cost left", "time=time left")
    console.print(table(columns, [_line_of(option) for option in data["options"]], width=console.width))
