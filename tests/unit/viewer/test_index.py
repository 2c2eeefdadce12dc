"""The index file and event streams: filled, searched, replaced; one build serves all who look."""

import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import orjson
import pytest

from osmosis.errors import NotFound
from osmosis.records.run.rows import Row
from osmosis.viewer import page
from osmosis.viewer.index import IndexFillers, remove_index
from osmosis.viewer.page import INTERVAL_S, MAX_PAUSE_S, EventStreams, format_event
from osmosis.viewer.search import RolloutQuery, Search


class SlowDataset:
    """Three rollouts, and a dataset that can be read when the test says so."""

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
    feed, fillers, path = SlowDataset(), IndexFillers(), tmp_path / "run.db"
    seen = 0
    while seen < 3:
        index, progress = fillers.open(path, feed, 1.0, wait_s=0.05)
        seen = len(Search(index).rollouts(RolloutQuery(), limit=10))
    assert not progress.complete, "the expected answers are still missing"
    feed.readable.set()
    while not progress.complete:
        index, progress = fillers.open(path, feed, 1.0, wait_s=1)
    assert [line.expected for line in Search(index).rollouts(RolloutQuery(), limit=10)] == ["", "4", ""]


class Wavering(SlowDataset):
    """Rows of three attempts: in some all pass, in some none, in some one."""

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
    index, progress = IndexFillers().open(tmp_path / "run.db", feed, 1.0, wait_s=60)
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
    """A feed without rollouts."""

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
    """An empty file is left when an index is removed while it is opened."""
    fillers, path = IndexFillers(), tmp_path / "run.db"
    first, _ = fillers.open(path, Empty("1"), 1.0, wait_s=60)
    first.close()
    first.path.write_bytes(left)
    again, _ = fillers.open(path, Empty("1"), 1.0, wait_s=60)
    assert (again.next, again.has_rows) == (0, True)
    again.close()


def test_a_run_that_is_another_now_is_opened_by_many_at_once(tmp_path: Path) -> None:
    """A page and its event stream open the index at the same time."""
    fillers, path = IndexFillers(), tmp_path / "run.db"
    with ThreadPoolExecutor(4) as threads:
        for number in range(40):

            def look(at: int = number) -> bool:
                index, _ = fillers.open(path, Empty(f"epoch {at}"), 1.0, wait_s=60)
                try:
                    return index.next == 0 and index.has_rows
                finally:
                    index.close()

            assert all([one.result() for one in [threads.submit(look) for _ in range(4)]])
    remove_index(path)
    assert not list(tmp_path.iterdir())


async def test_a_final_piece_ends_the_stream() -> None:
    pages = EventStreams()
    said = [event async for event in pages.stream("run", lambda: ("<p>a</p>\n<p>b</p>", True))]
    assert said[1:] == [b"data: <p>a</p>\ndata: <p>b</p>\n\n", b"event: end\ndata: over\n\n"]
    assert pages.open == 0


async def test_one_build_serves_all_who_look() -> None:
    pages, built = EventStreams(), []

    def build() -> tuple[str, bool]:
        built.append(1)
        return "same", False

    streams = [pages.stream("run", build) for _ in range(5)]
    for stream in streams:
        await stream.__anext__()
        assert await stream.__anext__() == b"data: same\n\n"
    assert pages.open == 5
    assert len(built) == 1
    for stream in streams:
        await stream.aclose()  # type: ignore[attr-defined]
    assert pages.open == 0


async def test_a_platform_that_stops_ends_its_streams() -> None:
    pages = EventStreams()
    stream = pages.stream("run", lambda: ("x", False))
    await stream.__anext__()
    await stream.__anext__()
    pages.stopping = True
    assert [event async for event in stream] == []


async def test_too_many_are_told_once_and_to_come_back() -> None:
    pages = EventStreams()
    pages.open = page.MAX_OPEN
    said = [event async for event in pages.stream("run", lambda: ("x", False))]
    assert said == [b"retry: 30000\n\n", b"data: x\n\n"]
    assert [event async for event in pages.stream("run", lambda: ("x", True))][1].endswith(page.END)
    assert pages.open == page.MAX_OPEN


def test_an_event_survives_every_line_end() -> None:
    assert format_event("a\r\nb\n\nc") == b"data: a\ndata: b\ndata: \ndata: c\n\n"


async def test_a_build_that_waited_slows_no_later_one_down() -> None:
    pages = EventStreams()

    def build() -> tuple[str, bool]:
        time.sleep(INTERVAL_S)
        return "x", False

    stream = pages.stream("run", build)
    await stream.__anext__()
    await stream.__anext__()
    piece = pages._pieces["run"]
    assert piece.work_s < INTERVAL_S / 2, "waiting is no work"
    assert piece.pause_s == INTERVAL_S
    piece.work_s = 60.0
    assert piece.pause_s == MAX_PAUSE_S
    await stream.aclose()  # type: ignore[attr-defined]


async def test_one_bad_look_ends_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "INTERVAL_S", 0.01)
    looks: list[int] = []

    def build() -> tuple[str, bool]:
        looks.append(1)
        if len(looks) in (2, 3):
            raise OSError("busy")
        return f"look {len(looks)}", len(looks) > 3

    said = [event async for event in EventStreams().stream("run", build)]
    assert said[1:] == [b"data: look 1\n\n", b"data: look 4\n\n", page.END]


async def test_a_stream_whose_looks_all_fail_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "INTERVAL_S", 0.01)

    def build() -> tuple[str, bool]:
        raise OSError("gone")

    pages = EventStreams()
    with pytest.raises(OSError, match="gone"):
        _ = [event async for event in pages.stream("run", build)]
    assert pages.open == 0


async def test_what_is_not_there_any_more_ends_a_stream_at_once() -> None:
    looks: list[int] = []

    def build() -> tuple[str, bool]:
        looks.append(1)
        raise NotFound("removed")

    assert len([event async for event in EventStreams().stream("run", build)]) == 1
    assert len(looks) == 1
