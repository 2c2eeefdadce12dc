"""The pages of runs by their addresses, and their forms, for every server that shows runs and for the export as files.
An address that ends in `.json` is the record of the page without it."""

import hashlib
import html
import math
import os
import re
import shutil
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from urllib.parse import parse_qsl, urlsplit

from pydantic import ValidationError as PydanticError

from osmosis.base.files import write_bytes
from osmosis.errors import NotFound, ValidationError
from osmosis.metrics.figures import figures, grouped, judged, spent_line
from osmosis.metrics.intervals import ALPHA
from osmosis.metrics.training import training_figures
from osmosis.metrics.warnings import alarms, training_alarms
from osmosis.records.run.annotations import LONGEST_COMMENT, LONGEST_LABEL, TAG_RULE, Annotation, MarkChange, unique
from osmosis.records.run.rollout import Rollout
from osmosis.viewer.charts import SMOOTHING, ChartedRun, build_charts, histogram
from osmosis.viewer.compare_page import code_page, compare_page, parse_run_pair
from osmosis.viewer.diff import split_files
from osmosis.viewer.history import history_page
from osmosis.viewer.index import IndexProgress
from osmosis.viewer.page import STATIC, Document, Page, QueryParams, pretty, run_header, to_record
from osmosis.viewer.rollout_page import build_calibrations, rollout_page
from osmosis.viewer.rollouts_page import export_rollouts, rollout_url, rollouts_page
from osmosis.viewer.run_source import LEVELS, Library, RunCard, RunSource, RunState
from osmosis.viewer.search import RolloutLine, RolloutQuery, parse_query

CODE_PATHS = ("compare/code", "compare/code.json")
MAX_WORST = 6
_NO_FIGURES: dict[str, object] = dict.fromkeys(("report", "counted", "histogram", "best"))
_NO_FIGURES |= dict.fromkeys(("cards", "groups", "worst", "parts", "curves", "checkpoints"), ())
CONFIG_TABLES = ("experiment", "evaluation", "training", "sampling", "checkpoints", "advanced", "env", "secrets")


def runs_page(library: Library, params: QueryParams) -> Page:
    words, tag = params.text("q").lower().split(), params.text("tag")
    cards = sorted(library.cards(), key=lambda card: not card.marks.pinned)
    matching = [card for card in cards if all(word in _search_text(card) for word in words)]
    matching = [card for card in matching if not tag or tag in card.marks.tags]
    going = any(card.state is not None and not card.state.over for card in cards)
    values = {"found": matching, "total": len(cards), "params": params, "going": going}
    return Page("runs.html", values, ("found", "total"), live="_runs.html", final=not going)


def _search_text(card: RunCard) -> str:
    model = card.state.model if card.state else ""
    return " ".join((card.name, model, card.dataset, card.score, *card.marks.tags)).lower()


def run_page(source: RunSource, params: QueryParams) -> Page:
    run = source.state()
    origin = source.origin()
    values = {**run_header(source, run, "overview"), **_figures(source, run, params), "origin": origin}
    values["calibrations"] = build_calibrations(source)
    values["params"] = params
    values["progress"] = progress = IndexProgress(0, 0) if run.kind == "training" else source.table().progress
    values["changes"] = split_files(origin.snapshot.diff) if origin.snapshot else []
    if search := origin.optimization:
        values["spent"] = spent_line(search)
        values["texts"] = {each.name: split_files("".join(search.diff_lines(each.name))) for each in search.candidates}
    record = ("run", "report", "origin", "curves", "checkpoints", "calibrations", "parts")
    return Page("run.html", values, record, live="_run.html", final=run.over and progress.complete)


def decision_page(library: Library, id_: str) -> Page:
    matches = library.decisions(id_)
    if not matches:
        raise NotFound("there is no such decision", hint="see the list: /decisions")
    ends = (end for q in matches[0].study.questions for end in (q.difference, q.margin, *(q.interval or ())) if end)
    reach: float = max(map(abs, ends), default=1.0)
    values = {"found": matches[0], "reach": reach, "spent": matches[0].spent, "error_rate": ALPHA}
    return Page("decision.html", values, ("found", "spent", "error_rate"))


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


RUN_PAGES: dict[str, Callable[[RunSource, QueryParams], Page | Document]] = {
    "": run_page,
    "config": lambda source, params: config_page(source),
    "logs": log_page,
    "rollouts": rollouts_page,
    "rollouts/export.csv": lambda source, params: export_rollouts(source, params, "csv"),
    "rollouts/export.json": lambda source, params: export_rollouts(source, params, "json"),
}


LIBRARY_PAGES: dict[str, Callable[[Library, QueryParams], Page]] = {
    "": runs_page,
    "index": runs_page,
    "compare": compare_page,
    "compare/code": lambda library, params: code_page(library.code(*parse_run_pair(params)), params),
    "history": history_page,
    "decisions": lambda library, params: Page("decisions.html", {"found": library.decisions()}, ("found",)),
}


def build_page(library: Library, path: str, params: QueryParams) -> Page | Document:
    path = path.strip("/")
    page = path.removesuffix(".json")
    if page in LIBRARY_PAGES:
        return select_format(LIBRARY_PAGES[page](library, params), path)
    head, _, rest = path.partition("/")
    if head == "decisions" and rest:
        return select_format(decision_page(library, rest.removesuffix(".json")), path)
    id_, _, below = rest.partition("/")
    if head != "runs" or not id_:
        raise NotFound(f"there is no page /{path}", hint="see the list of runs: /")
    if not below and id_.endswith(".json"):
        id_, below = id_.removesuffix(".json"), "index.json"
    return build_run_page(library.run(id_), below, params)


def build_run_page(source: RunSource, path: str, params: QueryParams) -> Page | Document:
    path = path.strip("/")
    if path in RUN_PAGES:
        return RUN_PAGES[path](source, params)
    if path.endswith(".json"):
        page = build_run_page(source, path.removesuffix(".json").removesuffix("index"), params)
        if isinstance(page, Document) or not page.record:
            raise _not_found(path)
        return to_record(page)
    name, *numbers = path.split("/")
    if name != "rollouts" or len(numbers) != 2 or not all(text.isascii() and text.isdigit() for text in numbers):
        raise _not_found(path)
    row, attempt = (int(text[:9]) for text in numbers)
    if params.text("raw") == "true":
        rollout = source.rollout(row, attempt, params.integer("step") or 0)
        return Document([rollout.encode()], "application/json")
    return rollout_page(source, row, attempt, params)


def _not_found(path: str) -> NotFound:
    return NotFound(f"a run has no page {path!r}", hint="its pages are rollouts, config and logs")


def build_run_changes(source: RunSource, params: QueryParams) -> tuple[Page, bool]:
    """Build what changes on the page that `of` names (the run's first one without), and whether it is final.

    Everybody gets the same part, so it contains no actions and no forms. `was` is `RunState.doing` when the page was
    loaded: once it differs, the page fetches its own actions."""
    page = build_run_page(source, params.text("of"), params.without("of", "was"))
    if isinstance(page, Document):
        raise NotFound("this page does not change", hint="reload it")
    return Page(page.changing.template, {**page.values, "was": params.text("was")}), page.final


def select_format(page: Page, path: str) -> Page | Document:
    return to_record(page) if path.endswith(".json") else page


def parse_annotation(form: Mapping[str, str], rollout: Rollout, author: str) -> Annotation:
    label, comment = form.get("label", "").strip(), form.get("comment", "").strip()
    if len(label) > LONGEST_LABEL:
        raise ValidationError(f"label: at most {LONGEST_LABEL} characters", field="label")
    if len(comment) > LONGEST_COMMENT:
        raise ValidationError(f"comment: at most {LONGEST_COMMENT} characters", field="comment")
    place = rollout.model_dump(include={"step", "row_index", "attempt", "row_key", "rollout_id"})
    score = _parse_score(form.get("score", "").strip())
    return Annotation(**place, label=label, score=score, comment=comment, author=author)


def _parse_score(text: str) -> float | None:
    if not text:
        return None
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise ValidationError(f"score: {text[:40]!r} is not a number", field="score", hint="for example 0.5")
    return score


def next_url(source: RunSource, rollout: Rollout, params: QueryParams) -> str:
    url = f"{source.state().url}/rollouts"
    if params.text("then") == "next":
        query = parse_query(params)
        near = source.table().search.neighbours(rollout.row_index, rollout.attempt, rollout.step, query)
        if near.after is not None:
            row_index, attempt, step = near.after
            return f"{url}/{row_index}/{attempt}{params.link(then=None, step=step or None)}".rstrip("?")
    return f"{url}/{rollout.row_index}/{rollout.attempt}{params.link(then=None)}".rstrip("?") + "#judgement"


def parse_marks(form: Mapping[str, str]) -> MarkChange:
    values = {
        "name": form.get("name", "").strip() or None,
        "tags": unique(form.get("tags", "").replace(",", " ").split()),
        "note": form.get("note", "").replace("\r\n", "\n"),
        "pinned": form.get("pinned") == "true",
    }
    try:
        return MarkChange.model_validate(values)
    except PydanticError as error:
        first = error.errors()[0]
        field, message = str(first["loc"][0]), str(first["msg"]).removeprefix("Value error, ")
        raise ValidationError(f"{field}: {message}", field=field, hint=f"a tag: {TAG_RULE}") from None


_LINK = re.compile(r'\b(href|src)="([^"]*)"')
_LIVE = re.compile(r'\s(?:hx-[a-z:-]+)="[^"]*"')
_ROLLOUT = re.compile(r"^/runs/([^/]+)/rollouts/(\d+)/(\d+)(\.json)?\Z")
_RUN = re.compile(r"^/runs/([^/]+?)(/config|/rollouts/export\.csv|/rollouts/export\.json)?\Z")
_TABLE = re.compile(r"^/runs/([^/]+)/rollouts\Z")
_TABLE_PARAMS = ("outcome", "agree", "at")
MARKER = ".osmosis-view"  # The file that marks a folder as an export, which may be overwritten


def write_site(
    library: Library, folder: Path, render: Callable[[Page], str], on_progress: Callable[[int], None]
) -> int:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        if not (folder / MARKER).is_file():
            raise ValidationError(f"{folder} holds something else", hint="choose a new folder, or an earlier export")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).write_text("Written by osmosis view --export, which may replace this folder.\n")
    shutil.copytree(STATIC, folder / "static")
    waiting, addresses = deque(["/"]), {"/"}
    count = 0
    while waiting:
        address = waiting.popleft()
        name = page_file(address)
        assert name is not None
        page = build_page(library, urlsplit(address).path, QueryParams(parse_qsl(urlsplit(address).query)))
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(page, Document):
            write_bytes(folder / name, b"".join(page.content))
        else:
            text, links = rewrite_links(render(page), address)
            waiting.extend(link for link in links if link not in addresses)
            addresses.update(links)
            write_bytes(folder / name, text.encode())
        count += 1
        on_progress(count)
    return count


def page_file(address: str) -> str | None:
    parts = urlsplit(address)
    path, params = parts.path.rstrip("/") or "/", dict(parse_qsl(parts.query))
    if path == "/":
        return "index.html"
    if path in ("/compare", "/compare/code"):
        kind = "code-" if path.endswith("code") else ""
        return f"compare/{kind}{hashlib.sha256(parts.query.encode()).hexdigest()[:12]}.html"
    if match := _ROLLOUT.match(path):
        step = f"{params['step']}-" if "step" in params else ""
        return f"runs/{_file_name(match[1])}/rollouts/{step}{match[2]}-{match[3]}{match[4] or '.html'}"
    if match := _TABLE.match(path):
        params = {name: value for name, value in params.items() if value}
        if set(params) - set(_TABLE_PARAMS):
            return None
        if params.get("at") == "1":
            del params["at"]
        tail = "".join(f"-{name}-{_file_name(params[name])}" for name in _TABLE_PARAMS if name in params)
        return f"runs/{_file_name(match[1])}/rollouts{tail}.html"
    if match := _RUN.match(path):
        files = {None: "index.html", "/config": "config.html", "/rollouts/export.csv": "rollouts.csv"}
        file = files.get(match[2], "rollouts.json")
        return None if parts.query and match[2] else f"runs/{_file_name(match[1])}/{file}"
    return None


def _file_name(text: str) -> str:
    """Return the text as a part of a file's name, never one that leads to another folder."""
    return re.sub(r"[^A-Za-z0-9._~-]", "-", text).lstrip(".") or "-"


def rewrite_links(text: str, address: str) -> tuple[str, list[str]]:
    file = page_file(address) or ""
    path = urlsplit(address).path
    links: list[str] = []

    def rewrite(match: re.Match[str]) -> str:
        target, hash_, fragment = html.unescape(match[2]).partition("#")
        if not target or urlsplit(target).scheme:
            return match[0]
        target = f"{path}{target}" if target.startswith("?") else target
        if target.startswith("/static/"):
            return f'{match[1]}="{_relative(urlsplit(target).path.lstrip("/"), file)}"'
        target = _drop_filter(target)
        name = page_file(target)
        if name is None:
            return "data-left-out"
        links.append(target)
        return f'{match[1]}="{html.escape(_relative(name, file))}{hash_}{fragment}"'

    return _LINK.sub(rewrite, _LIVE.sub("", text)), links


def _drop_filter(address: str) -> str:
    parts = urlsplit(address)
    if not _ROLLOUT.match(parts.path):
        return address
    step = [value for name, value in parse_qsl(parts.query) if name == "step"]
    return parts.path + (f"?step={step[0]}" if step else "")


def _relative(target: str, file: str) -> str:
    return PurePosixPath(os.path.relpath(target, PurePosixPath(file).parent)).as_posix()
