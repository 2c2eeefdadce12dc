"""Two or more runs beside each other: the first is the baseline. One verdict each, from the test that the command line
uses; which rows changed sides, with both conversations; what else differs between the runs: config, cost, time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlencode

from osmosis.errors import OsmosisError, UsageError
from osmosis.metrics.compare import Comparison, Flip, compare
from osmosis.metrics.figures import Figure, comparison_figures
from osmosis.metrics.significance import LEVEL, adjusted
from osmosis.records.quarantine import RowQuarantine, SortedOut
from osmosis.records.report import Report
from osmosis.records.rollout import Rollout

from .asked import Asked
from .code_diff import CodeChange
from .conversation import turns
from .filters import pretty
from .library import Library
from .source import RunSource, RunState
from .view import View

MOST = 12
PER_PAGE = 50
GRID = 24
"""Dots of the plot are put together on a grid of so many steps."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the runs."""

    id: str
    state: RunState
    report: Report | None
    mean: float | None
    comparison: Comparison | None = None
    """With the baseline; None of the baseline itself, and where the two cannot be compared."""
    verdict: str = ""
    problem: str = ""
    """Why the two cannot be compared."""
    met: SortedOut | None = None
    """Rows of both that are in quarantine, or were."""

    @property
    def name(self) -> str:
        return self.state.name


@dataclass(frozen=True, slots=True)
class Spot:
    """Rows of about the same two means, in units of the plot."""

    x: float
    y: float
    radius: float
    kind: str
    """`gained`, `lost` or `same`."""
    title: str


@dataclass(frozen=True, slots=True)
class Changed:
    """A setting that is not the same in both."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class FlipLine:
    flip: Flip
    kind: str
    url: str


@dataclass(frozen=True, slots=True)
class ComparePage:
    score: str
    sides: Sequence[Side]
    shown: str
    """The id of the run whose comparison with the baseline is shown below."""
    conclusion: str
    figures: Sequence[Figure]
    spots: Sequence[Spot]
    scale: tuple[float, float]
    flips: Sequence[FlipLine]
    total: int
    """How many flips there are of the chosen kind."""
    at: int
    pages: int
    changed: Sequence[Changed]
    code_page: str
    """Where what changed in the code is shown; empty where both are of one commit, or one of none."""
    code: str
    """The command that shows what changed in the code, where both were made of commits that differ."""
    code_url: str
    """The same in a browser, where both commits are of one repository on a host that shows them."""


def compare_page(library: Library, asked: Asked) -> View:
    """`?run=A&run=B`; with `row` and `attempt` both conversations at one pair."""
    ids = asked.all("run")[:MOST]
    if len(ids) < 2:
        raise UsageError("a comparison needs two runs", hint="choose them in the list of runs: /compare?run=A&run=B")
    sources = [(id_, library.run(id_)) for id_ in ids]
    if asked.number("row") is not None:
        return _pair_page(sources, asked, _quarantine(library, sources))
    quarantine = _quarantine(library, sources)
    sides = _sides(sources, asked.text("score") or None, quarantine)
    chosen = next((side for side in sides[1:] if side.id == asked.text("with")), None)
    shown = chosen or next((side for side in sides[1:] if side.comparison), sides[1])
    found = _page(sides, shown, asked, sources)
    scores = list(dict.fromkeys(name for _, source in sources for name in source.table().search.score_names()))
    values = {"found": found, "asked": asked, "scores": scores, "baseline": sides[0], "other": shown}
    return View("compare.html", values, ("found",))


def _quarantine(library: Library, sources: Sequence[tuple[str, RunSource]]) -> RowQuarantine:
    """What is in quarantine for one of them is for all: pairs are compared."""
    found = [*library.quarantine().row, *(one for _, source in sources for one in source.quarantine().row)]
    return RowQuarantine(row=[one for number, one in enumerate(found) if one not in found[:number]])


def two_of(asked: Asked) -> tuple[str, str]:
    """The two runs whose code is asked for."""
    ids = asked.all("run")
    if len(ids) != 2:
        raise UsageError("what changed in the code is between two runs", hint="/compare/code?run=A&run=B")
    return ids[0], ids[1]


def code_page(change: CodeChange, names: tuple[str, str], asked: Asked) -> View:
    """`/compare/code?run=A&run=B`: what changed in the code between both."""
    back = f"/compare?{urlencode([('run', id_) for id_ in two_of(asked)])}"
    return View("compare_code.html", {"change": change, "names": names, "back": back}, ("change", "names"))


def _sides(sources: Sequence[tuple[str, RunSource]], score: str | None, quarantine: RowQuarantine) -> list[Side]:
    first = sources[0][1]
    found = [
        _side(id_, source, first if number else None, score, quarantine) for number, (id_, source) in enumerate(sources)
    ]
    p_values = adjusted([side.comparison.p_value if side.comparison else None for side in found])
    return [_judged(side, p) for side, p in zip(found, p_values, strict=True)]


def _side(
    id_: str, source: RunSource, baseline: RunSource | None, score: str | None, quarantine: RowQuarantine
) -> Side:
    state, report = source.state(), source.report()
    mean = report.primary.mean if report and report.primary else None
    if baseline is None:
        return Side(id_, state, report, mean)
    mine = quarantine.of([state.dataset, baseline.state().dataset])
    try:
        found = compare(
            baseline.table().search.counted(),
            source.table().search.counted(),
            threshold=baseline.state().pass_threshold,
            score=score,
            bounds=_bounds(report) | _bounds(baseline.report()),
            aside=mine.held,
        )
    except OsmosisError as error:
        return Side(id_, state, report, mean, problem=error.message)
    return Side(id_, state, report, mean, found, met=mine.sorted_out(found.keys))


def _bounds(report: Report | None) -> dict[str, tuple[float, float]]:
    """What scores declare."""
    return {score.name: score.bounds for score in report.scores if score.bounds} if report else {}


def _judged(side: Side, p_value: float | None) -> Side:
    """With its verdict, which is as sure as it says among all that are looked at."""
    if side.comparison is None:
        return side
    chance = p_value is not None and p_value >= 1 - LEVEL
    verdict = "no clear difference" if chance else side.comparison.conclusion()
    return replace(side, verdict=verdict)


def _page(sides: Sequence[Side], shown: Side, asked: Asked, sources: Sequence[tuple[str, RunSource]]) -> ComparePage:
    found = shown.comparison
    kind = asked.one_of("flips", ("lost", "gained"))
    flips = _ordered(found.flips if found else (), kind)
    pages = max(1, math.ceil(len(flips) / PER_PAGE))
    at = min(max(1, asked.number("at") or 1), pages)
    by_id = dict(sources)
    return ComparePage(
        score=found.score if found else "",
        sides=sides,
        shown=shown.id,
        conclusion=shown.verdict or shown.problem,
        figures=list(comparison_figures(found)) if found else [],
        spots=list(_spots(found)) if found else [],
        scale=_scale(found) if found else (0.0, 1.0),
        flips=[_flip_line(flip, sides[0].id, shown.id, asked) for flip in flips[(at - 1) * PER_PAGE : at * PER_PAGE]],
        total=len(flips),
        at=at,
        pages=pages,
        changed=list(_changed(by_id[sides[0].id], by_id[shown.id])),
        code_page=_code_page(by_id[sides[0].id], by_id[shown.id], sides[0].id, shown.id),
        code=_code_diff(by_id[sides[0].id], by_id[shown.id]),
        code_url=_code_url(by_id[sides[0].id], by_id[shown.id]),
    )


def _ordered(flips: Iterable[Flip], kind: str) -> list[Flip]:
    """Lost ones first: they are what a reader looks for."""
    wanted = (flip for flip in flips if kind in ("", _kind(flip)))
    return sorted(wanted, key=lambda flip: (flip.gained, flip.row_index, flip.attempt))


def _kind(flip: Flip) -> str:
    return "gained" if flip.gained else "lost"


def _flip_line(flip: Flip, a: str, b: str, asked: Asked) -> FlipLine:
    pairs = [("run", a), ("run", b), ("row_a", flip.row_index_a), ("row", flip.row_index), ("attempt", flip.attempt)]
    kept = [(name, asked.text(name)) for name in ("score", "flips") if asked.text(name)]
    return FlipLine(flip, _kind(flip), f"/compare?{urlencode([*pairs, *kept])}")


def _scale(found: Comparison) -> tuple[float, float]:
    values = [value for _, *pair in found.by_row for value in pair] or [0.0]
    low, high = min(*values, 0.0), max(*values, 1.0)
    return low, high


def _spots(found: Comparison) -> Iterator[Spot]:
    """The rows as dots in a square of 100 units, those close to each other as one."""
    low, high = _scale(found)
    width = high - low or 1.0

    def step(value: float) -> int:
        return round((value - low) / width * GRID)

    counted = Counter((step(a), step(b)) for _, a, b in found.by_row)
    for (a, b), amount in sorted(counted.items()):
        kind = "gained" if b > a else "lost" if b < a else "same"
        before, after = (low + value * width / GRID for value in (a, b))
        rows = f"{amount:,} row{'' if amount == 1 else 's'}"
        yield Spot(
            x=round(100 * a / GRID, 2),
            y=round(100 - 100 * b / GRID, 2),
            radius=round(min(4.5, 0.9 + 0.45 * math.sqrt(amount)), 2),
            kind=kind,
            title=f"{rows}: about {before:.2f}, then {after:.2f}",
        )


def _changed(a: RunSource, b: RunSource) -> Iterator[Changed]:
    """What is not the same in configs and origins; names of runs and moments are not looked at."""
    before, after = _facts(a), _facts(b)
    for name in dict.fromkeys((*before, *after)):
        if before.get(name) != after.get(name):
            yield Changed(name, before.get(name, "–"), after.get(name, "–"))


def _code_diff(a: RunSource, b: RunSource) -> str:
    before, after = _commit(a), _commit(b)
    return f"git diff {before} {after}" if before and after and before != after else ""


def _code_page(a: RunSource, b: RunSource, *ids: str) -> str:
    return f"/compare/code?{urlencode([('run', id_) for id_ in ids])}" if _code_diff(a, b) else ""


def _code_url(a: RunSource, b: RunSource) -> str:
    web = {a.origin().web, b.origin().web}
    at = web.pop()
    return f"{at}/compare/{_commit(a)}...{_commit(b)}" if at and not web and _code_diff(a, b) else ""


def _commit(source: RunSource) -> str:
    code = source.origin().code
    return code.commit if code is not None else ""


def _facts(source: RunSource) -> dict[str, str]:
    found = {
        fact.label: f"{fact.text} {fact.note}".strip()
        for fact in source.origin().facts
        if isinstance(fact.text, str) and fact.label not in ("Folder", "Uploaded", "Submitted")
    }
    return {**found, **dict(_flat("", source.settings().config))}


def _flat(prefix: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{prefix}.{key}" if prefix else str(key), inner)
    elif prefix.rpartition(".")[2] != "name":
        yield prefix, value if isinstance(value, str) else pretty(value)


def _pair_page(sources: Sequence[tuple[str, RunSource]], asked: Asked, quarantine: RowQuarantine) -> View:
    """Both conversations at one row and attempt."""
    row, attempt = asked.number("row") or 0, asked.number("attempt") or 0
    row_a = asked.number("row_a")
    places = (row if row_a is None else row_a, row)
    (id_a, a), (id_b, b) = sources[0], sources[1]
    records = [
        Rollout.model_validate_json(source.rollout(place, attempt, 0))
        for source, place in zip((a, b), places, strict=True)
    ]
    sides = _sides([(id_a, a), (id_b, b)], asked.text("score") or None, quarantine)
    flips = sides[1].comparison.flips if sides[1].comparison else []
    kind = asked.one_of("flips", ("lost", "gained"))
    ordered = _ordered(flips, kind)
    here = next((i for i, flip in enumerate(ordered) if (flip.row_index, flip.attempt) == (row, attempt)), len(ordered))
    before, after = ordered[here - 1 : here] if here else [], ordered[here + 1 : here + 2]
    values = {
        "sides": sides,
        "records": records,
        "conversations": [turns(record.messages) for record in records],
        "row": row,
        "attempt": attempt,
        "near": [_flip_line(found[0], id_a, id_b, asked).url if found else "" for found in (before, after)],
        "expected": b.table().search.dataset_row(row, records[1].hashes.get("row")),
        "back": f"/compare?{urlencode([('run', id_a), ('run', id_b)])}",
        "urls": [f"{s.state.url}/rollouts/{place}/{attempt}" for s, place in zip(sides, places, strict=True)],
    }
    return View("compare_pair.html", values, ("records", "row", "attempt"))
