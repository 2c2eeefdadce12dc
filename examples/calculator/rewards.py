"""1.0 when the number after `####` is the ground truth."""

# ruff: noqa: RUF013 - `extra_info: dict = None` is the documented signature

import re

from osmosis import osmosis_reward


@osmosis_reward
def compute_reward(solution_str: str, ground_truth: str, extra_info: dict = None) -> float:
    """Exact to 1e-7."""
    found = re.findall(r"####\s*(-?\d+(?:\.\d+)?)", solution_str)
    return 1.0 if found and abs(float(found[-1]) - float(ground_truth)) < 1e-7 else 0.0
