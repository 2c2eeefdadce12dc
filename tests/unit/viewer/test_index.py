"""The table of rollouts is there before the rows of the dataset, which take a process of their own to read."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import orjson

from osmosis.records.dataset import Row
from osmosis.viewer.index.file import Fillers
from osmosis.viewer.index.query import RolloutQuery
from osmosis.viewer.index.search import Search


class SlowDataset:
    """Three rollouts, and a dataset that is read when the test says so."""

    epoch = "1"

    def __init__(self) -> None:
        self.readable = threading.Event()

    def since(self, place: int) -> Iterator[tuple[int, int, bytes | str]]:
        for row in range(place, 3):
            line = {
                "rollout_id": f"r{row}",
                "row_index": row,
                "attempt": 0,
                "status": "success",
                "hashes": {"row": "h"},
            }
            yield row, row + 1, orjson.dumps(line)

    def extent(self) -> int:
        return 3

    def dataset_rows(self) -> Iterable[Row]:
        assert self.readable.wait(30)
        return [Row(index=1, content_hash="h", data={"user_prompt": "2 + 2", "ground_truth": "4"})]


def test_rollouts_are_shown_before_the_dataset_was_read(tmp_path: Path) -> None:
    feed, fillers, path = SlowDataset(), Fillers(), tmp_path / "run.db"
    seen = 0
    while seen < 3:
        index, progress = fillers.filled(path, feed, 1.0, seconds=0.05)
        seen = len(Search(index).rollouts(RolloutQuery(), limit=10))
    assert not progress.complete, "the expected answers are still missing"
    feed.readable.set()
    while not progress.complete:
        index, progress = fillers.filled(path, feed, 1.0, seconds=1)
    assert [line.expected for line in Search(index).rollouts(RolloutQuery(), limit=10)] == ["", "4", ""]
