"""The reward: is the number after the last `####` the right one. Also for `osmosis eval --eval-fn rewards:answer_matches`."""

from __future__ import annotations

import re

from osmosis import osmosis_reward

ANSWER = re.compile(r"####\s*(-?[\d,]*\.?\d+(?:[eE][+-]?\d+)?)")


@osmosis_reward
def answer_matches(solution_str: str, ground_truth: str, extra_info: dict = None) -> float:
    """1.0 within 0.01 of the ground truth, else 0.0."""
    found = ANSWER.findall(solution_str)
    if not found:
        return 0.0
    return 1.0 if abs(float(found[-1].replace(",", "")) - float(ground_truth)) <= 0.01 else 0.0
