import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlencode

from osmosis.base.jsonable import iterate_leaves
from osmosis.errors import OsmosisError, UsageError
from osmosis.metrics.compare import Comparison, Flip, compare
from osmosis.metrics.figures import comparison_figures
from osmosis.metrics.intervals import LEVEL, adjusted
from osmosis.records.run.report import Report
from osmosis.records.run.rollout import Rollout
from osmosis.records.run.rows import RowQuarantine, SortedOut
from osmosis.viewer.charts import training_compare_page
from osmosis.viewer.conversation import build_turns, fold_same
from osmosis.viewer.diff import diff_code, diff_words
from osmosis.viewer.history import BASELINE_TAG
from osmosis.viewer.page import Page, QueryParams, pretty
from osmosis.viewer.run_source import CodePair, Library, RunSource, RunState
from osmosis.viewer.search import Search

MAX_RUNS = 12
PER_PAGE = 50
GRID = 24


@dataclass(frozen=True, slots=True)
class Side:
    id: str
    state: RunState
    report: Report | None
    mean: float | None
    comparison: Comparison | None = None  # Missing for the baseline itself, and where the two cannot be compared
    verdict: str = ""
    problem: str = ""
    met: SortedOut | None = None

    @property
    def name(self) -> str:
        return self.state.name


def compare_page(library: Library, params: QueryParams) -> Page:
    ids = params.all("run")[:MAX_RUNS]
    if len(ids) < 2:
        raise UsageError("a comparison needs two runs", hint="choose them in the list of runs: /compare?run=A&run=B")
    by_age = dict(sorted(((id_, library.run(id_)) for id_ in ids), key=lambda run: run[1].state().created_at))
    tagged = [id_ for id_, source in by_age.items() if BASELINE_TAG in source.context().marks.tags]
    first = params.text("baseline")
    first = first if first in by_age else next(reversed(tagged), next(iter(by_age)))
    sources = {first: by_age.pop(first), **by_age}
    kinds = {source.state().kind for source in sources.values()}
    if len(kinds) > 1:
        raise UsageError("an evaluation and a training run have nothing in common", hint="choose runs of one kind")
    if kinds == {"training"}:
        return training_compare_page(list(sources.values()), params)
    # A row in quarantine for one of them is so for all: pairs are compared.
    rows = [*library.quarantine().row, *(row for source in sources.values() for row in source.quarantine().row)]
    quarantine = RowQuarantine(row=[row for number, row in enumerate(rows) if row not in rows[:number]])
    if params.integer("row") is not None:
        return _pair_page(dict(list(sources.items())[:2]), params, quarantine)
    sides = _build_sides(sources, params.text("score") or None, quarantine)
    chosen = next((side for side in sides[1:] if side.id == params.text("with")), None)
    other = chosen or next((side for side in sides[1:] if side.comparison), sides[1])
    comparisons = _build_comparisons(sides, other, sources[sides[0].id], sources[other.id], params)
    comparisons["preferences"] = library.preferences([side.id for side in sides])
    scores = list(dict.fromkeys(name for source in sources.values() for name in source.table().search.score_names()))
    comparisons["unread"] = [run.state().name for run in sources.values() if not run.table().progress.complete]
    values = {"found": comparisons, "params": params, "scores": scores, "baseline": sides[0], "other": other}
    return Page("compare.html", values, ("found",))


def parse_run_pair(params: QueryParams) -> tuple[str, str]:
    ids = params.all("run")
    if len(ids) != 2:
        raise UsageError("what changed in the code is between two runs", hint="/compare/code?run=A&run=B")
    return ids[0], ids[1]


def code_page(pair: CodePair, params: QueryParams) -> Page:
    values = {"change": diff_code(pair), "names": pair.names, "back": _compare_url(*parse_run_pair(params))}
    return Page("compare_code.html", values, ("change", "names"))


def _compare_url(a: str, b: str, *more: tuple[str, object]) -> str:
    return f"/compare?{urlencode([('baseline', a), ('run', a), ('run', b), *more])}"


def _build_sides(sources: Mapping[str, RunSource], score: str | None, quarantine: RowQuarantine) -> list[Side]:
    baseline, *others = sources.items()
    sides = [_side(*baseline), *(_compare_side(*other, baseline[1], score, quarantine) for other in others)]
    p_values = adjusted([side.comparison.p_value if side.comparison else None for side in sides])
    return [_with_verdict(side, p_value) for side, p_value in zip(sides, p_values, strict=True)]


def _side(id_: str, source: RunSource) -> Side:
    report = source.report()
    return Side(id_, source.state(), report, report.primary.mean if report and report.primary else None)


def _compare_side(
    id_: str, source: RunSource, baseline: RunSource, score: str | None, quarantine: RowQuarantine
) -> Side:
    side = _side(id_, source)
    rows = quarantine.of([side.state.dataset, baseline.state().dataset])
    try:
        comparison = compare(
            baseline.table().search.stored_outcomes(),
            source.table().search.stored_outcomes(),
            threshold=baseline.state().pass_threshold,
            score=score,
            bounds=_score_bounds(side.report) | _score_bounds(baseline.report()),
            aside=rows.active,
            trained={*source.trained_rows(), *baseline.trained_rows()},
        )
    except OsmosisError as error:
        return replace(side, problem=error.message)
    return replace(side, comparison=comparison, met=rows.sorted_out(comparison.keys))


def _score_bounds(report: Report | None) -> dict[str, tuple[float, float]]:
    return {score.name: score.bounds for score in report.scores if score.bounds} if report else {}


def _with_verdict(side: Side, p_value: float | None) -> Side:
    if side.comparison is None:
        return side
    unclear = side.comparison.verdict in ("better", "worse") and p_value is not None and p_value >= 1 - LEVEL
    return replace(side, verdict="no clear difference" if unclear else side.comparison.conclusion())


def _build_comparisons(
    sides: Sequence[Side], other: Side, baseline: RunSource, source: RunSource, params: QueryParams
) -> dict[str, object]:
    comparison = other.comparison
    flips = _sort_flips(comparison.flips if comparison else (), params)
    pages = max(1, math.ceil(len(flips) / PER_PAGE))
    at = min(max(1, params.integer("at") or 1), pages)
    a, b = sides[0].id, other.id
    commits = _commit(baseline), _commit(source)
    code_differs = all(commits) and commits[0] != commits[1]
    hosts = {baseline.origin().web, source.origin().web}
    host = hosts.pop() if len(hosts) == 1 else ""
    earlier, later = _settings(baseline), _settings(source)
    searches = baseline.table().search, source.table().search
    return {
        "score": comparison.score if comparison else "",
        "sides": sides,
        "shown": b,
        "conclusion": other.verdict or other.problem,
        "figures": list(comparison_figures(comparison)) if comparison else [],
        "spots": list(_spots(comparison)) if comparison else [],
        "scale": _scale(comparison) if comparison else (0.0, 1.0),
        "flips": [
            {
                "flip": flip,
                "kind": _flip_kind(flip),
                "url": _flip_url(flip, a, b, params),
                **_read_excerpts(flip, *searches),
            }
            for flip in flips[(at - 1) * PER_PAGE : at * PER_PAGE]
        ],
        "total": len(flips),
        "at": at,
        "pages": pages,
        "changed": [
            {"name": name, "before": earlier.get(name, "–"), "after": later.get(name, "–")}
            for name in dict.fromkeys((*earlier, *later))
            if earlier.get(name) != later.get(name)
        ],
        "code_page": f"/compare/code?{urlencode([('run', a), ('run', b)])}" if code_differs else "",
        "code": f"git diff {commits[0]} {commits[1]}" if code_differs else "",
        "code_url": f"{host}/compare/{commits[0]}...{commits[1]}" if host and code_differs else "",
    }


def _read_excerpts(flip: Flip, earlier: Search, later: Search) -> dict[str, object]:
    rows = ((earlier, flip.row_index_a), (later, flip.row_index))
    before, after = ({line.attempt: line for line in search.attempts(row, 0)}.get(flip.attempt) for search, row in rows)
    prompt = after.prompt if after else ""
    return {"prompt": prompt, "answers": [line.answer if line else "" for line in (before, after)]}


def _sort_flips(flips: Iterable[Flip], params: QueryParams) -> list[Flip]:
    kind = params.choice("flips", ("lost", "gained"))
    chosen = (flip for flip in flips if kind in ("", _flip_kind(flip)))
    return sorted(chosen, key=lambda flip: (flip.gained, flip.row_index, flip.attempt))


def _flip_kind(flip: Flip) -> str:
    return "gained" if flip.gained else "lost"


def _flip_url(flip: Flip, a: str, b: str, params: QueryParams) -> str:
    pairs = [("row_a", flip.row_index_a), ("row", flip.row_index), ("attempt", flip.attempt)]
    filters = [(name, params.text(name)) for name in ("score", "flips") if params.text(name)]
    return _compare_url(a, b, *pairs, *filters)


def _scale(comparison: Comparison) -> tuple[float, float]:
    values = [value for _, *pair in comparison.by_row for value in pair] or [0.0]
    return min(*values, 0.0), max(*values, 1.0)


def _spots(comparison: Comparison) -> Iterator[dict[str, object]]:
    low, high = _scale(comparison)
    width = high - low or 1.0

    def step(value: float) -> int:
        return round((value - low) / width * GRID)

    amounts = Counter((step(a), step(b)) for _, a, b in comparison.by_row)
    for (a, b), amount in sorted(amounts.items()):
        before, after = (low + value * width / GRID for value in (a, b))
        rows = f"{amount:,} row{'' if amount == 1 else 's'}"
        yield {
            "x": round(100 * a / GRID, 2),
            "y": round(100 - 100 * b / GRID, 2),
            "radius": round(min(4.5, 0.9 + 0.45 * math.sqrt(amount)), 2),
            "kind": "gained" if b > a else "lost" if b < a else "same",
            "title": f"{rows}: about {before:.2f}, then {after:.2f}",
        }


def _commit(source: RunSource) -> str:
    code = source.origin().code
    return code.commit if code is not None else ""


def _settings(source: RunSource) -> dict[str, str]:
    facts = {
        fact.label: f"{fact.text} {fact.note}".strip()
        for fact in source.origin().facts
        if isinstance(fact.text, str) and fact.label not in ("Folder", "Uploaded", "Submitted")
    }
    config = {
        path: value if isinstance(value, str) else pretty(value)
        for path, value in iterate_leaves(source.settings().config)
        if path.rpartition(".")[2] != "name"
    }
    return {**facts, **config}


def _pair_page(sources: Mapping[str, RunSource], params: QueryParams, quarantine: RowQuarantine) -> Page:
    row, attempt = params.integer("row") or 0, params.integer("attempt") or 0
    row_a = params.integer("row_a")
    row_indexes = (row if row_a is None else row_a, row)
    records = [
        Rollout.model_validate_json(source.rollout(row_index, attempt, 0))
        for source, row_index in zip(sources.values(), row_indexes, strict=True)
    ]
    a, b = sources
    sides = _build_sides(sources, params.text("score") or None, quarantine)
    flips = _sort_flips(sides[1].comparison.flips if sides[1].comparison else (), params)
    keys = [(flip.row_index, flip.attempt) for flip in flips]
    number = keys.index((row, attempt)) if (row, attempt) in keys else len(flips)
    before, after = flips[number - 1 : number] if number else [], flips[number + 1 : number + 2]
    near = [_flip_url(near[0], a, b, params) if near else "" for near in (before, after)]
    places = zip(sides, row_indexes, strict=True)
    urls = [f"{side.state.url}/rollouts/{row_index}/{attempt}" for side, row_index in places]
    values = {"row": row, "attempt": attempt, "near": near, "back": _compare_url(a, b), "urls": urls}
    return build_pair_page(sides, records, sources[b].table().search, values)


def build_pair_page(
    sides: Sequence[Side], records: Sequence[Rollout], search: Search, values: Mapping[str, object]
) -> Page:
    both: dict[str, object] = {"sides": sides, "records": records}
    both["expected"] = search.dataset_row(records[1].row_index, records[1].hashes.get("row"))
    both["reward"] = next(iter(search.score_names()), "")
    left, right = conversations = [build_turns(record.messages) for record in records]
    fold_same(left, right)
    both["conversations"] = conversations
    both["parted"] = next((number for number, turn in enumerate(left) if not (turn.same or turn.attached)), None)
    answers = [next((turn.text for turn in reversed(turns) if turn.role == "assistant"), "") for turns in conversations]
    both["answers"] = diff_words(*answers)
    return Page("compare_pair.html", {**both, **values}, ("records", "row", "attempt"))
