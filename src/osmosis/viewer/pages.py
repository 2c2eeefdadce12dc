"""The pages of one run, each a template with its values, put together from a `RunSource`.

Arranges what others computed; a page has no figure of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from osmosis.metrics.alarms import alarms
from osmosis.metrics.figures import figures, grouped, headlines
from osmosis.metrics.training_alarms import training_alarms
from osmosis.records.rollout import Category, Rollout

from . import filters
from .charts import curves, histogram
from .conversation import turns
from .source import LEVELS, ORDERS, OUTCOMES, RolloutQuery, RunSource, RunState, outcome_of

PER_PAGE = 50
TABLES = ("experiment", "evaluation", "training", "sampling", "checkpoints", "advanced", "env", "secrets")
"""Of a config, in the order of the file."""


@dataclass(frozen=True, slots=True)
class View:
    """A template and what it shows."""

    template: str
    values: Mapping[str, object]


def run_page(source: RunSource) -> View:
    """What the run is, its figures, what it was made of."""
    run = source.state()
    values = {**_head(source, run, "overview"), **_figures(source, run), "origin": source.origin()}
    return View("run.html", values)


def live_part(source: RunSource) -> View:
    """The part of the run's page that changes while it is in progress."""
    return View("_figures.html", _figures(source, source.state()))


def config_page(source: RunSource) -> View:
    settings = source.settings()
    values = {**_head(source, source.state(), "config"), "settings": settings, "lines": config_lines(settings.config)}
    return View("run_config.html", values)


def log_page(
    source: RunSource, *, level: str = "", cursor: str = "", newer: bool = False, fragment: bool = False
) -> View:
    """Part of the log; the page of a run in progress follows the newest lines. A `fragment` is the lines alone."""
    level = level if level in LEVELS else "info"
    lines = source.log(level, cursor=cursor or None, newer=newer)
    values: dict[str, object] = {"lines": lines, "level": level, "cursor": cursor}
    if fragment:
        return View("_log.html", values)
    run = source.state()
    values |= {"levels": LEVELS, "following": not cursor and not run.over}
    return View("run_logs.html", {**_head(source, run, "logs"), **values})


def rollouts_page(
    source: RunSource,
    *,
    outcome: str = "",
    category: str = "",
    row: str = "",
    order: str = "row",
    step: str = "",
    at: int = 1,
) -> View:
    """The rollouts that fit the form, `PER_PAGE` at a time."""
    run = source.state()
    threshold = run.pass_threshold
    at = max(1, at)

    def wanted(page: int) -> RolloutQuery:
        return RolloutQuery(
            threshold,
            outcome if outcome in OUTCOMES else "",
            category,
            _number(row),
            order if order in ORDERS else "row",
            PER_PAGE,
            (page - 1) * PER_PAGE,
            _number(step),
        )

    found = source.rollouts(wanted(at))
    pages = max(1, math.ceil(found.total / PER_PAGE))
    if at > pages:
        at = pages
        found = source.rollouts(wanted(at))
    values = {
        "rows": [(one, outcome_of(one, threshold)) for one in found.rows],
        "found": found,
        "at": at,
        "pages": pages,
        "chosen": {"outcome": outcome, "category": category, "row": row, "order": order, "step": step},
        "categories": [known.value for known in Category],
        "outcomes": OUTCOMES,
        "orders": ORDERS,
    }
    return View("rollouts.html", {**_head(source, run, "rollouts"), **values})


def _number(text: str) -> int | None:
    """What a form says, when it is a number."""
    return int(text[:9]) if text.isascii() and text.isdigit() else None


def rollout_page(source: RunSource, row_index: int, attempt: int, step: int = 0) -> View:
    """One rollout with its whole conversation; `step` is that of a training run."""
    record = Rollout.model_validate_json(source.rollout(row_index, attempt, step))
    run = source.state()
    siblings = [(row.attempt, outcome_of(row, run.pass_threshold)) for row in source.attempts(row_index, step)]
    values = {
        "run": run,
        "place": source.place(),
        "record": record,
        "turns": turns(record.messages),
        "outcome": next((outcome for number, outcome in siblings if number == attempt), "failed"),
        "near": source.neighbours(row_index, attempt, step),
        "siblings": siblings,
    }
    return View("rollout.html", values)


def _head(source: RunSource, run: RunState, tab: str) -> dict[str, object]:
    return {"run": run, "place": source.place(), "tab": tab}


def _figures(source: RunSource, run: RunState) -> dict[str, object]:
    if run.kind == "training":
        return _course(source, run)
    report = source.report()
    return {
        "run": run,
        "report": report,
        "cards": headlines(report) if report else [],
        "groups": grouped(figures(report)) if report else [],
        "alarms": alarms(report, run.model, over=run.over),
        "bars": histogram(source.rewards(), run.pass_threshold),
        "curves": [],
        "checkpoints": [],
        "best": None,
    }


def _course(source: RunSource, run: RunState) -> dict[str, object]:
    """How a training run goes: alarms, curves, checkpoints; what its rollouts have in common is in the curves."""
    points = source.points()
    by_key: dict[str, list[tuple[int, float]]] = {}
    for point in points:
        by_key.setdefault(point.key, []).append((point.step, point.value))
    checkpoints = source.checkpoints()
    scored = [one for one in checkpoints if one.reward is not None]
    best = max(scored, key=lambda one: (one.reward or 0.0, one.step), default=None)
    return {
        "run": run,
        "report": None,
        "cards": [],
        "groups": [],
        "bars": [],
        "alarms": training_alarms(by_key),
        "curves": curves(points),
        "checkpoints": checkpoints,
        "best": best.name if best else None,
    }


def config_lines(config: Mapping[str, object]) -> list[tuple[str, list[tuple[str, str]]]]:
    """The config as tables of key and value, in the order of the file."""
    return list(_tables(config))


def _tables(config: Mapping[str, object]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    for table in TABLES:
        values = config.get(table)
        if isinstance(values, Mapping) and values:
            yield table, [(str(key), _toml(value)) for key, value in values.items()]


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return filters.pretty(value) if isinstance(value, (str, list, dict)) else str(value)
