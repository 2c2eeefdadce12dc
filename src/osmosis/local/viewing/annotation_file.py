"""`annotations.jsonl`: what people said about the rollouts of a local run, beside its journal.

Only grows; a line that was cut off while it was written, or that no version of ours wrote, is passed over.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError as PydanticError

from osmosis.base.files import append_line
from osmosis.base.locks import locked
from osmosis.records.annotation import Annotation

NAME = "annotations.jsonl"


def read_annotations(path: Path) -> list[Annotation]:
    """What a file holds, in order; none where there is no file."""
    if not path.exists():
        return []
    found = []
    for line in path.read_bytes().splitlines():
        try:
            found.append(Annotation.model_validate_json(line))
        except PydanticError:
            continue
    return found


class AnnotationFile:
    """Of the run in this folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME

    @property
    def size(self) -> int:
        """Changes with every line."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def read(self) -> list[Annotation]:
        """Everything that was said, in order."""
        return read_annotations(self.path)

    def merge(self, said: Iterable[Annotation]) -> int:
        """Adds what is not there yet, in order of time; how many that were."""
        with locked(self.path.with_name(".annotations.lock")):
            known = {one.identity for one in self.read()}
            added = [one for one in said if one.identity not in known]
            for one in sorted(added, key=lambda one: one.created_at):
                append_line(self.path, one.to_line())
        return len(added)

    def add(self, said: Annotation) -> None:
        """On disk when this returns; several processes may write at once."""
        with locked(self.path.with_name(".annotations.lock")):
            append_line(self.path, said.to_line())
