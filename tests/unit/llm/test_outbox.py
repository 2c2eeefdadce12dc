"""Requests of one round of the event loop go out together, and none that nobody waits for any more."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from osmosis.llm.outbox import AT_ONCE, Outbox


@dataclass
class Sent:
    """A transport that remembers."""

    all: list[bytes] = field(default_factory=list)

    def write(self, data: bytes) -> None:
        self.all.append(data)


@dataclass
class Line:
    transport: Sent
    closed: bool = False


def test_a_round_goes_out_at_its_end_in_order_and_without_who_hung_up() -> None:
    async def go() -> list[bytes]:
        sent, outbox = Sent(), Outbox(asyncio.get_running_loop())
        lines = [Line(sent) for _ in range(4)]
        for number, line in enumerate(lines):
            outbox.put(line, b"%d" % number)
        lines[2].closed = True
        assert sent.all == []
        await asyncio.sleep(0)
        return sent.all

    assert asyncio.run(go()) == [b"0", b"1", b"3"]


def test_a_long_round_does_not_keep_the_server_waiting() -> None:
    async def go() -> None:
        sent, outbox = Sent(), Outbox(asyncio.get_running_loop())
        for number in range(AT_ONCE + 1):
            outbox.put(Line(sent), b"%d" % number)
        assert len(sent.all) == AT_ONCE
        await asyncio.sleep(0)
        assert len(sent.all) == AT_ONCE + 1

    asyncio.run(go())
