"""Writes the dataset: sums of two numbers, the same rows each time. `python make_data.py 500 > more.jsonl`."""

from __future__ import annotations

import json
import random
import sys


def main(rows: int) -> None:
    """One JSON object a line."""
    draw = random.Random(7)
    for _ in range(rows):
        a, b = draw.randint(10, 49), draw.randint(10, 49)
        sys.stdout.write(json.dumps({"user_prompt": f"{a}+{b}", "ground_truth": str(a + b)}) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 320)
