"""How long the viewer takes for a table of 1,000, 10,000 and 100,000 rollouts: to index them once, and for what a page
of it asks afterwards: least processor time of several.

    python benchmarks/viewer.py [--rollouts 1000 10000 100000] [--attempts 4] [--json]

The conversations are made up: four messages, one tool call, 40 words of which some are in every one.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qsl

from osmosis.records.run.rollout import Rollout, RolloutStatus, Score, Usage
from osmosis.records.run.rows import Row
from osmosis.viewer.index import RolloutIndex
from osmosis.viewer.page import QueryParams
from osmosis.viewer.search import Search, parse_query

WORDS = [f"word{number}" for number in range(5000)]
ASKED = {
    "first page": "",
    "failed": "outcome=failed",
    "by tokens": "sort=tokens",
    "by another score": "sort=score:style",
    "a tool": "tool=lookup",
    "a range": "low=0.3&high=0.6",
    "a word in all": "q=answer",
    "a word in few": "q=word17",
    "a phrase": 'q="the answer is"',
    "in all, by tokens": "q=answer&sort=tokens",
    "attempts disagree": "agree=no",
}


class Made:
    """A feed of rollouts that are made up, the same each time."""

    epoch = "made"

    def __init__(self, rollouts: int, attempts: int) -> None:
        self.rollouts, self.attempts = rollouts, attempts

    def extent(self) -> int:
        return self.rollouts

    def dataset_rows(self) -> Iterator[Row]:
        for row in range(-(-self.rollouts // self.attempts)):
            yield Row(
                index=row, data={"user_prompt": f"question {row}", "ground_truth": str(row)}, content_hash=f"h{row}"
            )

    def since(self, place: int) -> Iterator[tuple[int, int, bytes]]:
        draw = random.Random(7)
        for number in range(place, self.rollouts):
            yield number, number + 1, made(number, self.attempts, draw)


def made(number: int, attempts: int, draw: random.Random) -> bytes:
    row, attempt = divmod(number, attempts)
    value = draw.choice((0.0, 0.5, 1.0))
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "lookup" if row % 50 else "other", "arguments": '{"x": 1}'},
    }
    said = " ".join(draw.choices(WORDS, k=40))
    messages = [
        {"role": "user", "content": f"question {row}"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": said},
        {"role": "assistant", "content": f"the answer is {draw.randrange(100)}"},
    ]
    failed = draw.random() < 0.02
    scores = {"exact": Score(name="exact", value=value), "style": Score(name="style", value=draw.random())}
    usage = Usage(prompt_tokens=draw.randrange(100, 9000), completion_tokens=draw.randrange(500), cost_usd=0.001)
    status = RolloutStatus.FAILED if failed else RolloutStatus.SUCCESS
    return Rollout(
        rollout_id=str(number), row_index=row, attempt=attempt, status=status, messages=messages,
        scores={} if failed else scores, usage=usage, duration_ms=draw.random() * 9000, hashes={"row": f"h{row}"},
    ).to_line()  # fmt: skip


def page_of(index: RolloutIndex, query: str, by: str) -> Callable[[], object]:
    """What a page asks of the index, all of it."""
    wanted = parse_query(QueryParams(parse_qsl(query)))

    def ask() -> object:
        search = Search(index)
        heads = (search.outcomes(), search.score_names(), search.tool_names(), search.categories(), search.columns(),
                 search.extras(), search.most_attempts())  # fmt: skip
        if by == "row":
            return heads, search.count_rows(wanted), search.count(wanted), search.rows(wanted, limit=50)
        return heads, search.count(wanted), search.rollouts(wanted, limit=50)

    return ask


def least_ms(ask: Callable[[], object], times: int = 5) -> float:
    took = []
    for _ in range(times):
        begun = time.process_time()
        ask()
        took.append(1000 * (time.process_time() - begun))
    return min(took)


def measured(rollouts: int, attempts: int, folder: Path) -> dict[str, object]:
    path = folder / f"{rollouts}.db"
    begun = time.process_time()
    index = RolloutIndex(path, epoch="made", threshold=1.0)
    index.fill(Made(rollouts, attempts))
    indexed_s = time.process_time() - begun
    by = "row" if attempts > 1 else "rollout"
    asked = {name: round(least_ms(page_of(index, query, by)), 1) for name, query in ASKED.items()}
    near = parse_query(QueryParams([("q", "answer"), ("sort", "tokens")]))
    asked["previous and next"] = round(least_ms(lambda: Search(index).neighbours(5, 0, 0, near)), 1)
    index.close()
    assert index.path is not None
    size_mb = round(index.path.stat().st_size / 1e6, 1)
    return {"rollouts": rollouts, "by": by, "indexed_s": round(indexed_s, 2), "size_mb": size_mb, "page_ms": asked}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--attempts", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = []
        for attempts in args.attempts:
            where = Path(folder, str(attempts))
            where.mkdir()
            found += [measured(rollouts, attempts, where) for rollouts in args.rollouts]
    if args.json:
        print(json.dumps(found, indent=2))
        return
    for one in found:
        size = f"{one['indexed_s']} s, {one['size_mb']} MB"
        print(f"{one['rollouts']:>7,} rollouts, a line per {one['by']}: indexed in {size}")
        for name, took in one["page_ms"].items():  # type: ignore[attr-defined]
            print(f"        {name:20} {took:8.1f} ms")


if __name__ == "__main__":
    main()
