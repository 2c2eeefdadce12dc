"""The pages of runs by their addresses: one table for every server that shows runs, and for the export. An address that
ends in `.json` is the record of the page without it."""

from collections.abc import Callable

from osmosis.errors import NotFound
from osmosis.viewer import run_pages
from osmosis.viewer.compare_page import code_page, compare_page, parse_run_pair
from osmosis.viewer.diff import diff_code
from osmosis.viewer.history import history_page
from osmosis.viewer.page import Document, Page, QueryParams, to_record
from osmosis.viewer.rollout_page import rollout_page
from osmosis.viewer.rollouts_page import export_rollouts, rollouts_page
from osmosis.viewer.run_library import Library, runs_page
from osmosis.viewer.run_source import RunSource

CODE_PATHS = ("compare/code", "compare/code.json")
RUN_PAGES: dict[str, Callable[[RunSource, QueryParams], Page | Document]] = {
    "": run_pages.run_page,
    "config": lambda source, params: run_pages.config_page(source),
    "logs": run_pages.log_page,
    "rollouts": rollouts_page,
    "rollouts/export.csv": lambda source, params: export_rollouts(source, params, "csv"),
    "rollouts/export.json": lambda source, params: export_rollouts(source, params, "json"),
}


def build_page(library: Library, path: str, params: QueryParams) -> Page | Document:
    path = path.strip("/")
    page = path.removesuffix(".json")
    if page in ("", "index"):
        return select_format(runs_page(library, params), path)
    if page == "compare":
        return select_format(compare_page(library, params), path)
    if page == "compare/code":
        pair = library.code(*parse_run_pair(params))
        return select_format(code_page(diff_code(pair), pair.names, params), path)
    if page == "history":
        return select_format(history_page(library, params), path)
    head, _, rest = path.partition("/")
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
