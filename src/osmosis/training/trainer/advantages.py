"""Group-relative advantages, and what a token of a sequence weighs: the same figures as TRL's, for engines without it.

Shao et al. 2024 (arXiv:2402.03300), equation 3 and what follows; `dr_grpo` (Liu et al. 2025) divides by no standard
deviation and by a constant length, `dapo` (Yu et al. 2025) by the tokens of the whole batch.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence as Row

from osmosis.training.link import Sequence, TrainerPlan

_TINY = 1e-4
"""Added to a standard deviation before it divides."""


def advantages(plan: TrainerPlan, rewards: Row[float | None]) -> list[float]:
    """Of rewards in the order of groups. What has no reward has no advantage, and is in no mean."""
    size = plan.samples_per_row
    scale = "none" if plan.loss == "dr_grpo" else plan.scale_rewards
    overall = _spread([reward for reward in rewards if reward is not None])
    found: list[float] = []
    for at in range(0, len(rewards), size):
        group = rewards[at : at + size]
        scored = [reward for reward in group if reward is not None]
        mean = statistics.fmean(scored) if scored else 0.0
        divisor = 1.0 if scale == "none" else (_spread(scored) if scale == "group" else overall) + _TINY
        found += [0.0 if reward is None else (reward - mean) / divisor for reward in group]
    return found


def token_weights(plan: TrainerPlan, spoken: Row[int]) -> list[float]:
    """What each token of a sequence weighs in the loss, from how many tokens of the model every sequence has."""
    if plan.loss == "dapo":
        return [1.0 / max(1, sum(spoken))] * len(spoken)
    if plan.loss == "dr_grpo":
        return [1.0 / (len(spoken) * plan.max_response_length)] * len(spoken)
    return [1.0 / (max(1, tokens) * len(spoken)) for tokens in spoken]


def learnable(sequences: Row[Sequence | None], plan: TrainerPlan) -> list[tuple[Sequence, list[float]]]:
    """The sequences that move the weights, each with a number per token after the prompt: advantage times weight."""
    gained = advantages(plan, [one.reward if one else None for one in sequences])
    spoken = [sum(one.mask) if one and one.reward is not None else 0 for one in sequences]
    weights = token_weights(plan, spoken)
    return [
        (one, [advantage * weight * said for said in one.mask])
        for one, advantage, weight, said_at_all in zip(sequences, gained, weights, spoken, strict=True)
        if one is not None and advantage and said_at_all and one.prompt_length
    ]


def _spread(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0
