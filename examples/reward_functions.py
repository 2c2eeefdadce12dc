"""Reward functions: the documented signature, checked when this file is imported, the result on every call."""

# ruff: noqa: RUF013 - `extra_info: dict = None` is the documented signature

import asyncio
import re

from osmosis import osmosis_reward

NUMBER = re.compile(r"####\s*(-?[\d,]*\.?\d+)")


@osmosis_reward
def exact_match(solution_str: str, ground_truth: str, extra_info: dict = None) -> float:
    """1.0 when the texts are the same, white space around them aside."""
    return 1.0 if solution_str.strip() == ground_truth.strip() else 0.0


@osmosis_reward
def last_number(solution_str: str, ground_truth: str, extra_info: dict = None) -> float:
    """1.0 when the number after the last `####` is within `extra_info["tolerance"]` of the truth."""
    found = NUMBER.findall(solution_str)
    if not found:
        return 0.0
    tolerance = (extra_info or {}).get("tolerance", 1e-6)
    return 1.0 if abs(float(found[-1].replace(",", "")) - float(ground_truth)) <= tolerance else 0.0


@osmosis_reward
async def slow_match(solution_str: str, ground_truth: str, extra_info: dict = None, *, delay: float = 0.0) -> float:
    """Async rewards and further parameters with defaults are fine."""
    await asyncio.sleep(delay)
    return float(ground_truth.lower() in solution_str.lower())


if __name__ == "__main__":
    print("exact_match:", exact_match("Paris ", "Paris"))
    print("last_number:", last_number("12 * 3 = 36\n#### 36", "36"))
    print("slow_match: ", asyncio.run(slow_match("It is PARIS.", "paris", delay=0.01)))
