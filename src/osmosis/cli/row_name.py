"""Which row a person means: its id or key as it stands, or `RUN:INDEX`, its place in a local run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from osmosis.engine.journal import Journal
from osmosis.errors import NotFound
from osmosis.local.request import run_folder
from osmosis.records.keys import place_key


@dataclass(frozen=True)
class RowName:
    """A row, and the dataset in which it was found."""

    key: str
    dataset: str = ""
    """Empty where only the key was given."""


def row_named(given: str, cwd: Path) -> RowName:
    """`RUN:INDEX` of a local run as the key of that row; anything else is one. NotFound for a place that the run has
    no rollout of."""
    name, _, index = given.rpartition(":")
    if not (name and index.isdigit()):
        return RowName(given)
    try:
        journal = Journal(run_folder(name, cwd))
    except NotFound:
        return RowName(given)
    for outcome in journal.outcomes():
        if outcome.row_index == int(index):
            return RowName(outcome.row_key or place_key(outcome.row_index), Path(journal.plan().dataset).stem)
    raise NotFound(f"run {journal.folder.name} has no rollout of row {index}", hint=f"osmosis eval show {name}")
