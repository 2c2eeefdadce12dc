"""The rollouts of a run of the database, and the rows it used, for the index of the viewer.

Asks in pieces, each in a session of its own, so that a long filling holds none. The dataset is read by a process with
limits; what that refuses costs the columns of the dataset, never the page.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson
import sqlalchemy as sa
from sqlalchemy.orm import undefer

from osmosis.errors import OsmosisError
from osmosis.platform import Platform, tables
from osmosis.platform.readers import read_with
from osmosis.records.dataset import Row
from osmosis.viewer.index.file import Fillers

log = logging.getLogger(__name__)

FILLERS = Fillers()
PIECE = 300
READ_S = 30.0


@dataclass(frozen=True)
class RunFeed:
    """`viewer.index.file.Feed` of one run; a place is the id of a rollout."""

    platform: Platform
    run_id: str
    epoch: str
    newest: int
    """The id of the newest rollout."""
    dataset: str
    """Its key in the object store; empty when there is none."""
    rows: Sequence[int]

    def extent(self) -> int:
        return self.newest

    def since(self, place: int) -> Iterator[tuple[int, int, str]]:
        while True:
            with self.platform.db.read() as session:
                query = sa.select(tables.Rollout).where(tables.Rollout.run_id == self.run_id, tables.Rollout.id > place)
                wanted = query.order_by(tables.Rollout.id).limit(PIECE).options(undefer(tables.Rollout.body))
                found = [(row.id, row.body) for row in session.scalars(wanted)]
            if not found:
                return
            for place, body in found:
                yield place, place, body

    def dataset_rows(self) -> Iterable[Row]:
        if not self.dataset:
            return
        try:
            dataset = self.platform.objects.fetch(self.dataset)
        except OsmosisError as error:
            log.warning("the dataset of run %s cannot be had: %s", self.run_id, error.message)
            return
        with TemporaryDirectory(prefix="osmosis-rows-") as folder:
            draft = Path(folder, "rows")
            given = {"path": str(dataset), "rows": list(self.rows), "draft": str(draft)}
            try:
                read_with(["-m", "osmosis.datasets.rows_reader"], given, what="this dataset", files=[dataset],
                          write=[Path(folder)], seconds=READ_S)  # fmt: skip
            except OsmosisError as error:
                log.warning("the rows of run %s are not shown: %s", self.run_id, error.message)
                return
            with draft.open("rb") as lines:
                for line in lines:
                    index, content_hash, data = orjson.loads(line)
                    yield Row(index=index, data=data, content_hash=content_hash)
