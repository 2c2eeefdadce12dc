"""The pages of a run by their addresses: one table for every server that shows runs, and for the export.

A path begins below the run's own address. What ends in `.json` is the record of the page without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from osmosis.errors import NotFound

from . import pages
from .asked import Asked
from .code_diff import code_change
from .compare_page import code_page, compare_page, two_of
from .history_page import history_page
from .library import Library, runs_page
from .rollout_page import rollout_page
from .rollouts_page import exported, rollouts_page
from .source import RunSource
from .view import Document, View, twin

CODE = ("compare/code", "compare/code.json")
"""What asks git: to be answered where that may take its time."""
Page = Callable[[RunSource, Asked], View | Document]
PAGES: dict[str, Page] = {
    "": lambda source, asked: pages.run_page(source),
    "config": lambda source, asked: pages.config_page(source),
    "logs": pages.log_page,
    "rollouts": rollouts_page,
    "rollouts/export.csv": lambda source, asked: exported(source, asked, "csv"),
    "rollouts/export.json": lambda source, asked: exported(source, asked, "json"),
}


def answer(source: RunSource, path: str, asked: Asked) -> View | Document:
    """The page at a path below a run. NotFound when there is none."""
    path = path.strip("/")
    if path in PAGES:
        return PAGES[path](source, asked)
    if path.endswith(".json"):
        return _twin(answer(source, path.removesuffix(".json").removesuffix("index"), asked), path)
    return _rollout(source, path.split("/"), asked)


def changing(source: RunSource, asked: Asked) -> tuple[View, bool]:
    """What changes on the page that `of` names (none: the first one) with the rest of its query; if that is final.

    `was` is what the run did when the page was made. Actions are not everybody's, and forms carry what is one person's:
    once the run does something else, the piece that all get has the page fetch its own.
    """
    own = asked.without("of").without("was")
    view, final = _changing(answer(source, asked.text("of"), own))
    return View(view.template, {**view.values, "was": asked.text("was")}), final


def changing_of_library(library: Library, asked: Asked) -> tuple[View, bool]:
    """The same of the list of runs."""
    return _changing(runs_page(library, asked))


def _changing(found: View | Document) -> tuple[View, bool]:
    if isinstance(found, Document):
        raise NotFound("this page does not change", hint="reload it")
    return found.changing, found.final


def twin_of(found: View, path: str) -> View | Document:
    """The page, or its record where the path asks for that."""
    return twin(found) if path.endswith(".json") else found


def _twin(found: View | Document, path: str) -> Document:
    if isinstance(found, Document) or not found.record:
        raise _missing(path)
    return twin(found)


def _rollout(source: RunSource, parts: Sequence[str], asked: Asked) -> View | Document:
    known, *numbers = parts
    if known == "rollouts" and len(numbers) == 2 and all(one.isascii() and one.isdigit() for one in numbers):
        row, attempt = (int(one[:9]) for one in numbers)
        if asked.text("raw") == "true":
            record = source.rollout(row, attempt, asked.number("step") or 0)
            return Document([record.encode()], "application/json")
        return rollout_page(source, row, attempt, asked)
    raise _missing("/".join(parts))


def _missing(path: str) -> NotFound:
    return NotFound(f"a run has no page {path!r}", hint="its pages are rollouts, config and logs")


def of_library(library: Library, path: str, asked: Asked) -> View | Document:
    """The page at an address of a server that shows nothing but runs."""
    path = path.strip("/")
    if path in ("", "index.json"):
        return twin_of(runs_page(library, asked), path)
    if path in ("compare", "compare.json"):
        return twin_of(compare_page(library, asked), path)
    if path in CODE:
        pair = library.code(*two_of(asked))
        return twin_of(code_page(code_change(pair), pair.names, asked), path)
    if path in ("history", "history.json"):
        return twin_of(history_page(library, asked), path)
    head, _, rest = path.partition("/")
    id_, _, below = rest.partition("/")
    if head != "runs" or not id_:
        raise NotFound(f"there is no page /{path}", hint="see the list of runs: /")
    if not below and id_.endswith(".json"):
        id_, below = id_.removesuffix(".json"), "index.json"
    return answer(library.run(id_), below, asked)
