"""Writes the dataset: products of two signed decimals, the same rows each time. `python make_data.py 500 > more.jsonl`."""

from __future__ import annotations

import json
import random
import sys
from decimal import Decimal

SYSTEM = (
    "You multiply two numbers. Use the multiply tool, then write the product on a line of its own after four hash "
    "signs, rounded to four decimals.\nFor 1.5 and -2 the last line is: #### -3"
)


def number(draw: random.Random) -> Decimal:
    """Between -100 and 100 with up to two decimals, never zero."""
    return Decimal(draw.choice([-1, 1]) * draw.randint(1, 10_000)) / 100


def rows(count: int, seed: int = 7) -> list[dict[str, str]]:
    """`count` rows; a longer dataset begins with the rows of a shorter one."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        a, b = number(draw), number(draw)
        product = f"{a * b:.4f}".rstrip("0").rstrip(".")
        made.append({"system_prompt": SYSTEM, "user_prompt": f"Multiply {a} and {b}.", "ground_truth": product})
    return made


if __name__ == "__main__":
    for row in rows(int(sys.argv[1]) if len(sys.argv) > 1 else 240):
        print(json.dumps(row))
