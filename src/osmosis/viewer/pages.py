"""The pages of one run, each a template with its values, put together from a `RunSource`.

Arranges what others computed; a page has no figure of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from osmosis.metrics.alarms import alarms
from osmosis.metrics.figures import figures, grouped
from osmosis.metrics.judged import judged
from osmosis.metrics.training_alarms import training_alarms

from . import filters
from .asked import Asked
from .calibration import calibrations
from .charts import curves, histogram
from .code_diff import by_file
from .source import LEVELS, RunSource, RunState
from .view import View, head

TABLES = ("experiment", "evaluation", "training", "sampling", "checkpoints", "advanced", "env", "secrets")
"""Of a config, in the order of the file."""


def run_page(source: RunSource) -> View:
    """What the run is, its figures, what it was made of."""
    run = source.state()
    origin = source.origin()
    values = {**head(source, run, "overview"), **_figures(source, run), "origin": origin}
    values["calibrations"] = calibrations(source)
    values["changes"] = by_file(origin.snapshot.diff) if origin.snapshot else []
    record = ("run", "report", "origin", "curves", "checkpoints", "calibrations")
    return View("run.html", values, record, live="_run.html", final=run.over)


def config_page(source: RunSource) -> View:
    settings = source.settings()
    values = {**head(source, source.state(), "config"), "settings": settings, "lines": config_lines(settings.config)}
    return View("run_config.html", values, ("run", "settings"))


def log_page(source: RunSource, asked: Asked) -> View:
    """Part of the log; the page of a run in progress follows the newest lines."""
    level, cursor = asked.one_of("level", LEVELS, "info"), asked.text("cursor")
    run = source.state()  # before the lines: those of a run that is over are its last
    lines = source.log(level, cursor=cursor or None, newer=asked.text("direction") == "newer")
    following = not cursor and not run.over
    values = {"lines": lines, "level": level, "cursor": cursor, "levels": LEVELS, "following": following,
              "asked": asked}  # fmt: skip
    return View(
        "run_logs.html",
        {**head(source, run, "logs"), **values},
        ("run", "lines"),
        live="_log.html",
        final=not following,
    )


def _figures(source: RunSource, run: RunState) -> dict[str, object]:
    if run.kind == "training":
        return _course(source, run)
    report = source.report()
    counted = (
        judged(lambda: source.table().search.counted(), report, source.quarantine(), dataset=run.dataset)
        if report
        else None
    )
    return {
        "run": run,
        "report": report,
        "counted": counted,
        "cards": counted.headlines(report) if report and counted else [],
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
        "counted": None,
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
    for table in dict.fromkeys((*TABLES, *config)):
        values = config.get(table)
        if isinstance(values, Mapping) and values:
            yield table, [(str(key), _toml(value)) for key, value in values.items()]


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return filters.pretty(value) if isinstance(value, (str, list, dict)) else str(value)
