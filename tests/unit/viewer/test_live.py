from __future__ import annotations

import time

import pytest

from osmosis.errors import NotFound
from osmosis.viewer import live
from osmosis.viewer.live import EVERY_S, LONGEST_PAUSE_S, LivePages, as_event


async def test_a_final_piece_ends_the_stream() -> None:
    pages = LivePages()
    said = [event async for event in pages.stream("run", lambda: ("<p>a</p>\n<p>b</p>", True))]
    assert said[1:] == [b"data: <p>a</p>\ndata: <p>b</p>\n\n", b"event: end\ndata: over\n\n"]
    assert pages.open == 0


async def test_one_build_serves_all_who_look() -> None:
    pages, built = LivePages(), []

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
    pages = LivePages()
    stream = pages.stream("run", lambda: ("x", False))
    await stream.__anext__()
    await stream.__anext__()
    pages.stopping = True
    assert [event async for event in stream] == []


async def test_too_many_are_told_once_and_to_come_back() -> None:
    pages = LivePages()
    pages.open = live.MAX_OPEN
    said = [event async for event in pages.stream("run", lambda: ("x", False))]
    assert said == [b"retry: 30000\n\n", b"data: x\n\n"]
    assert [event async for event in pages.stream("run", lambda: ("x", True))][1].endswith(live.END)
    assert pages.open == live.MAX_OPEN


def test_an_event_survives_every_line_end() -> None:
    assert as_event("a\r\nb\n\nc") == b"data: a\ndata: b\ndata: \ndata: c\n\n"


async def test_a_build_that_waited_slows_no_later_one_down() -> None:
    pages = LivePages()

    def build() -> tuple[str, bool]:
        time.sleep(EVERY_S)
        return "x", False

    stream = pages.stream("run", build)
    await stream.__anext__()
    await stream.__anext__()
    piece = pages._pieces["run"]
    assert piece.work_s < EVERY_S / 2, "waiting is no work"
    assert piece.pause_s == EVERY_S
    piece.work_s = 60.0
    assert piece.pause_s == LONGEST_PAUSE_S
    await stream.aclose()  # type: ignore[attr-defined]


async def test_one_bad_look_ends_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "EVERY_S", 0.01)
    looks: list[int] = []

    def build() -> tuple[str, bool]:
        looks.append(1)
        if len(looks) in (2, 3):
            raise OSError("busy")
        return f"look {len(looks)}", len(looks) > 3

    said = [event async for event in LivePages().stream("run", build)]
    assert said[1:] == [b"data: look 1\n\n", b"data: look 4\n\n", live.END]


async def test_a_stream_whose_looks_all_fail_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "EVERY_S", 0.01)

    def build() -> tuple[str, bool]:
        raise OSError("gone")

    pages = LivePages()
    with pytest.raises(OSError, match="gone"):
        _ = [event async for event in pages.stream("run", build)]
    assert pages.open == 0


async def test_what_is_not_there_any_more_ends_a_stream_at_once() -> None:
    looks: list[int] = []

    def build() -> tuple[str, bool]:
        looks.append(1)
        raise NotFound("removed")

    with pytest.raises(NotFound):
        _ = [event async for event in LivePages().stream("run", build)]
    assert len(looks) == 1
