"""A row, found by its key, or a figure of the reports, over several runs, and the page that plots it."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, fields

from osmosis.metrics.figures import figures
from osmosis.records.run.history import History, PastRun, Trade, find_start, find_unbeaten
from osmosis.records.run.report import Report
from osmosis.viewer.charts import HistoryChart, history_chart
from osmosis.viewer.page import Page, QueryParams
from osmosis.viewer.run_source import Library, RunCard

MAX_RUNS = 200
PATIENCE_S = 4.0
BASELINE_TAG = "baseline"


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    row: str = ""
    metric: str = ""
    rollout: str = ""
    model: str = ""
    dataset: str = ""
    tag: str = ""
    baseline: str = ""

    def matches(self, card: RunCard) -> bool:
        if card.state is None or card.state.kind != "eval":
            return False
        pairs = ((self.rollout, card.rollout), (self.model, card.state.model), (self.dataset, card.dataset))
        return all(name in ("", actual) for name, actual in pairs) and (not self.tag or self.tag in card.marks.tags)


def build_history(library: Library, query: HistoryQuery, *, patience_s: float | None = PATIENCE_S) -> History:
    """List the runs that match, the oldest first; waits at most `patience_s` for the index, without limit when None."""
    cards = [card for card in library.cards()[:MAX_RUNS] if query.matches(card)][::-1]
    sources = {card.id: library.run(card.id) for card in cards}
    values = {id_: dict(_named_values(source.report())) for id_, source in sources.items()}
    metrics = dict.fromkeys(name for of_run in values.values() for name in of_run)
    metric = query.metric or min(metrics, key=lambda name: ":" not in name, default="")  # a score's before the run's
    runs: list[PastRun] = []
    unread = 0
    deadline = None if patience_s is None else time.monotonic() + patience_s
    for card in cards:
        assert card.state is not None
        source = sources[card.id]
        value, low, high = values[card.id].get(metric, (None, None, None))
        run = PastRun(
            **{name: getattr(card, name) for name in ("id", "name", "rollout", "dataset", "commit")},
            url=card.state.url,
            model=card.state.model,
            created_at=card.state.created_at or None,
            tags=card.marks.tags,
            value=value,
            low=low,
            high=high,
            trade=Trade.from_report(source.report(), card.dataset),
        )
        if query.row:
            if deadline is not None and time.monotonic() > deadline:
                unread += 1
                continue
            if not source.is_indexed(wait=deadline is None):
                unread += 1
            run.row = source.row_count(query.row)
        runs.append(run)
    tagged = next((run.id for run in reversed(runs) if BASELINE_TAG in run.tags), "")
    quarantine = library.quarantine()
    return History(
        metric=metric,
        metrics=list(metrics),
        row=query.row,
        runs=runs,
        unread=unread,
        baseline=next((run.id for run in runs if query.baseline and query.baseline in (run.id, run.name)), tagged),
        quarantine=quarantine.about(query.row) if query.row else quarantine.row,
    )


def _named_values(report: Report | None) -> Iterator[tuple[str, tuple[float | None, float | None, float | None]]]:
    for figure in figures(report) if report is not None else ():
        if isinstance(figure.value, str):
            continue
        name = f"{figure.group}:{figure.name}" if figure.group else figure.name
        interval = figure.interval
        yield name, (figure.value, interval.low if interval else None, interval.high if interval else None)


def history_page(library: Library, params: QueryParams) -> Page:
    """Build `?metric=NAME` or `?row=KEY`; `rollout`, `model`, `dataset`, `tag` select runs, `baseline` compares."""
    history = build_history(library, HistoryQuery(*(params.text(field.name) for field in fields(HistoryQuery))))
    cards = [card for card in library.cards() if card.state is not None and card.state.kind == "eval"]
    choices = {
        "rollout": sorted({card.rollout for card in cards if card.rollout}),
        "model": sorted({card.state.model for card in cards if card.state and card.state.model}),
        "dataset": sorted({card.dataset for card in cards if card.dataset}),
    }
    values = {
        "found": history,
        "params": params,
        "choices": choices,
        "groups": _by_dataset(history),
        "since": find_start(history.runs) if history.row else None,
        "newest_first": history.runs[::-1],
        "unbeaten": find_unbeaten({run.id: run.trade for run in history.runs}),
    }
    return Page("history.html", values, ("found",))


def _by_dataset(history: History) -> list[tuple[str, HistoryChart | None, list[PastRun]]]:
    """Return each dataset's chart and its runs, the newest first: figures of two datasets are not comparable."""
    runs: dict[str, list[PastRun]] = {}
    for run in history.runs:
        runs.setdefault(run.dataset, []).append(run)
    charts = {name: history_chart(history.model_copy(update={"runs": members})) for name, members in runs.items()}
    return [(name, charts[name], members[::-1]) for name, members in runs.items()]
