from collections.abc import Mapping

from osmosis.metrics.figures import figures, grouped, judged, spent_line
from osmosis.metrics.training import training_figures
from osmosis.metrics.warnings import alarms, training_alarms
from osmosis.viewer.charts import histogram
from osmosis.viewer.diff import split_files
from osmosis.viewer.index.search import RolloutLine, RolloutQuery
from osmosis.viewer.page import Page, QueryParams, run_header
from osmosis.viewer.render import pretty
from osmosis.viewer.rollout_page import build_calibrations
from osmosis.viewer.rollouts_page import rollout_url
from osmosis.viewer.run_source import LEVELS, RunSource, RunState
from osmosis.viewer.training_charts import SMOOTHING, ChartedRun, build_charts

MAX_WORST = 6
_NO_FIGURES: dict[str, object] = dict.fromkeys(("report", "counted", "histogram", "best"))
_NO_FIGURES |= dict.fromkeys(("cards", "groups", "worst", "parts", "curves", "checkpoints"), ())
CONFIG_TABLES = ("experiment", "evaluation", "training", "sampling", "checkpoints", "advanced", "env", "secrets")


def run_page(source: RunSource, params: QueryParams) -> Page:
    run = source.state()
    origin = source.origin()
    values = {**run_header(source, run, "overview"), **_figures(source, run, params), "origin": origin}
    values["calibrations"] = build_calibrations(source)
    values["params"] = params
    values["changes"] = split_files(origin.snapshot.diff) if origin.snapshot else []
    if search := origin.optimization:
        values["spent"] = spent_line(search)
        values["texts"] = {each.name: split_files("".join(search.diff_lines(each.name))) for each in search.candidates}
    record = ("run", "report", "origin", "curves", "checkpoints", "calibrations", "parts")
    return Page("run.html", values, record, live="_run.html", final=run.over)


def config_page(source: RunSource) -> Page:
    settings = source.settings()
    values = {
        **run_header(source, source.state(), "config"),
        "settings": settings,
        "lines": list_config_tables(settings.config),
    }
    return Page("run_config.html", values, ("run", "settings"))


def log_page(source: RunSource, params: QueryParams) -> Page:
    level, cursor = params.choice("level", LEVELS, "info"), params.text("cursor")
    run = source.state()  # before the lines: those of a run that is over are its last
    lines = source.log(level, cursor=cursor or None, newer=params.text("direction") == "newer")
    following = not cursor and not run.over
    values = {
        **run_header(source, run, "logs"),
        "lines": lines,
        "level": level,
        "cursor": cursor,
        "levels": LEVELS,
        "following": following,
        "params": params,
    }
    return Page("run_logs.html", values, ("run", "lines"), live="_log.html", final=not following)


def _figures(source: RunSource, run: RunState, params: QueryParams) -> dict[str, object]:
    if run.kind == "training":
        charted = ChartedRun.from_source(source, source.points())
        checkpoints = source.checkpoints()
        scored = [checkpoint for checkpoint in checkpoints if checkpoint.reward is not None]
        best = max(scored, key=lambda checkpoint: (checkpoint.reward or 0.0, checkpoint.step), default=None)
        return {
            **_NO_FIGURES,
            "cards": [figure for figure in training_figures(charted.curves) if figure.headline],
            "alarms": training_alarms(charted.curves),
            "curves": build_charts([charted], params.choice("smooth", SMOOTHING, "none")),
            "checkpoints": checkpoints,
            "best": best.name if best else None,
        }
    report, counted = source.report(), None
    if report:
        search = source.table().search
        counted = judged(search.stored_outcomes, report, source.quarantine(), dataset=run.dataset)
    return {
        **_NO_FIGURES,
        "report": report,
        "counted": counted,
        "cards": counted.headlines(report) if report and counted else [],
        "groups": grouped(figures(report)) if report else [],
        "alarms": alarms(report, run.model, over=run.over),
        "histogram": histogram(source.rewards(), run.pass_threshold),
        "worst": _worst_rollouts(source, run) if report and report.completed else [],
        "parts": source.table().search.part_means() if report and report.completed else [],
    }


def _worst_rollouts(source: RunSource, run: RunState) -> list[tuple[RolloutLine, str]]:
    query = RolloutQuery(outcome="not-passed", sort="reward", step=0)
    lines = source.table().search.rollouts(query, limit=MAX_WORST)
    return [(line, rollout_url(run, line.key, "outcome=not-passed")) for line in lines]


def list_config_tables(config: Mapping[str, object]) -> list[tuple[str, list[tuple[str, str]]]]:
    tables = []
    for table in dict.fromkeys((*CONFIG_TABLES, *config)):
        values = config.get(table)
        if isinstance(values, Mapping) and values:
            tables.append((table, [(str(key), _format_toml(value)) for key, value in values.items()]))
    return tables


def _format_toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return pretty(value) if isinstance(value, (str, list, dict)) else str(value)
