"""One run over many jobs: which of its rows a shard has, and how many of its rollouts run at once.

Shards are runs of neighbouring rows, so that a range of indices says what belongs to one.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from .base import Record


class Shard(Record):
    """A part of a run's rows, with a job of its own."""

    number: int = Field(default=0, ge=0)
    count: int = Field(default=1, ge=1)
    concurrency: int | None = Field(default=None, ge=1)
    """How many of the run's rollouts it may have in flight when it starts; None: all that the config says."""

    def of(self, rows: Sequence[int]) -> list[int]:
        """Its rows among all those of the run."""
        first, end = (len(rows) * number // self.count for number in (self.number, self.number + 1))
        return list(rows[first:end])


class Spend(Record):
    """What models have cost: the agents' and the judges'."""

    cost_usd: float = 0.0
    tokens: int = 0


def shards_for(wanted: int | str, *, rows: int, concurrency: int, room: int) -> int:
    """How many shards a run gets: never more than it has rows or rollouts in flight, because each has at least one of
    both. `auto` is as many jobs as there is room for now."""
    count = room if wanted == "auto" else int(wanted)
    return max(1, min(count, rows, concurrency))


def share(concurrency: int, place: int, count: int) -> int:
    """What the job at this place among `count` that are not over may have in flight, of all together."""
    each, more = divmod(concurrency, max(1, count))
    return max(1, each + (place < more))
