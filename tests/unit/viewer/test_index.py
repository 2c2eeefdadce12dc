"""The table of rollouts is there before the rows of the dataset, which take a process of their own to read."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import orjson
import pytest

from osmosis.records.dataset import Row
from osmosis.viewer.index.file import Fillers, remove
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


class Wavering(SlowDataset):
    """Rows of three attempts: of some all pass, of some none, of some one."""

    def since(self, place: int) -> Iterator[tuple[int, int, bytes | str]]:
        for number in range(place, self.extent()):
            row, attempt = divmod(number, 3)
            passed = (1.0, 1.0, 1.0) if row % 3 == 0 else (0.0, 1.0, 0.0) if row % 3 == 1 else (0.0, 0.0, 0.0)
            score = {"exact": {"name": "exact", "value": passed[attempt]}}
            usage = {"prompt_tokens": 100 - row, "completion_tokens": 0}
            line = {"rollout_id": f"r{number}", "row_index": row, "attempt": attempt, "status": "success"}
            yield number, number + 1, orjson.dumps({**line, "scores": score, "usage": usage})

    def extent(self) -> int:
        return 36


def test_rows_whose_attempts_disagree_are_found_in_any_order_and_with_any_filter(tmp_path: Path) -> None:
    feed = Wavering()
    feed.readable.set()
    index, progress = Fillers().filled(tmp_path / "run.db", feed, 1.0, seconds=60)
    assert progress.complete
    search, wavering = Search(index), [1, 4, 7, 10]

    def rows_of(**wanted: object) -> tuple[list[int], int, int]:
        query = RolloutQuery(agree="no", **wanted)  # type: ignore[arg-type]
        found = search.rows(query, limit=10)
        assert all(len(lines) == 3 for lines in found), "each with all its attempts"
        return [lines[0].row_index for lines in found], search.count_rows(query), search.count(query)

    assert rows_of() == (wavering, 4, 12)
    assert rows_of(down=True) == (wavering[::-1], 4, 12)
    assert rows_of(sort="tokens") == (wavering[::-1], 4, 12)
    assert rows_of(outcome="passed") == (wavering, 4, 4)
    assert rows_of(row=3) == ([], 0, 0)
    assert [line.row_index for line in search.rollouts(RolloutQuery(agree="no"), limit=4)] == [1, 1, 1, 4]


class Empty:
    """A feed of nothing; another epoch is another journal."""

    def __init__(self, epoch: str) -> None:
        self.epoch = epoch

    def extent(self) -> int:
        return 0

    def since(self, place: int) -> Iterator[tuple[int, int, bytes]]:
        return iter(())

    def dataset_rows(self) -> list[Row]:
        return []


@pytest.mark.parametrize("left", [b"", b"no index at all" * 100])
def test_a_file_that_is_no_index_is_made_anew(tmp_path: Path, left: bytes) -> None:
    """An empty one is what opening leaves in place of a file that was removed in the same moment."""
    fillers, path = Fillers(), tmp_path / "run.db"
    first, _ = fillers.filled(path, Empty("1"), 1.0, seconds=60)
    assert first.path is not None
    first.close()
    first.path.write_bytes(left)
    again, _ = fillers.filled(path, Empty("1"), 1.0, seconds=60)
    assert (again.next, again.has_rows) == (0, True)
    again.close()


def test_a_run_that_is_another_now_is_opened_by_many_at_once(tmp_path: Path) -> None:
    """A page and its stream ask in the same moment; a file that one of them puts in place is under the other's feet."""
    fillers, path = Fillers(), tmp_path / "run.db"
    with ThreadPoolExecutor(4) as threads:
        for number in range(40):

            def look(at: int = number) -> bool:
                index, _ = fillers.filled(path, Empty(f"epoch {at}"), 1.0, seconds=60)
                try:
                    return index.next == 0 and index.has_rows
                finally:
                    index.close()

            assert all([one.result() for one in [threads.submit(look) for _ in range(4)]])
    remove(path)
    assert not list(tmp_path.iterdir())
