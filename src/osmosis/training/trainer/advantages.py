"""Group-relative advantages and token weights, by rollout: whatever its parts, one rollout weighs one rollout. Shao et
al. 2024 (arXiv:2402.03300), equation 3 and what follows; `dr_grpo` (Liu et al. 2025) divides by no standard deviation
and by a constant length, `dapo` (Yu et al. 2025) and `cispo` by the tokens of the whole batch. `rejection` keeps the
rollouts above their group's mean, each with the advantage 1 (RAFT: Dong et al. 2023, arXiv:2304.06767)."""

import statistics
from collections.abc import Sequence as Row
from dataclasses import dataclass

from osmosis.training.protocol.messages import Sequence
from osmosis.training.protocol.plans import TrainerPlan

_TINY = 1e-4


@dataclass(frozen=True, slots=True)
class WeighedSequence:
    sequence: Sequence
    advantage: float
    weight: float  # Of each of the model's tokens in the loss of the step


def advantages(plan: TrainerPlan, rewards: Row[float | None]) -> list[float]:
    """Return advantages in the order of groups. A None reward has no advantage and no place in a mean."""
    size = plan.samples_per_row
    scale = "none" if plan.loss == "dr_grpo" else plan.scale_rewards
    overall = _spread([reward for reward in rewards if reward is not None])
    values: list[float] = []
    for at in range(0, len(rewards), size):
        group = rewards[at : at + size]
        scored = [reward for reward in group if reward is not None]
        mean = statistics.fmean(scored) if scored else 0.0
        if plan.loss == "rejection":
            values += [float(reward is not None and reward > mean) for reward in group]
            continue
        divisor = 1.0 if scale == "none" else (_spread(scored) if scale == "group" else overall) + _TINY
        values += [0.0 if reward is None else (reward - mean) / divisor for reward in group]
    return values


def token_weights(plan: TrainerPlan, sampled: Row[int]) -> list[float]:
    if plan.loss in ("dapo", "cispo", "rejection", "distill"):
        return [1.0 / max(1, sum(sampled))] * len(sampled)
    if plan.loss == "dr_grpo":
        return [1.0 / (len(sampled) * plan.max_response_length)] * len(sampled)
    return [1.0 / (max(1, tokens) * len(sampled)) for tokens in sampled]


def weigh_rollouts(rollouts: Row[Row[Sequence]], plan: TrainerPlan) -> list[list[WeighedSequence]]:
    """Return the rollouts that are trained on, each as its parts; without reward, or rejected, it is left out."""
    rewards = [parts[0].reward if parts else None for parts in rollouts]
    values = advantages(plan, rewards)
    is_kept = [
        reward is not None and (plan.loss != "rejection" or value > 0)
        for reward, value in zip(rewards, values, strict=True)
    ]
    sampled = [sum(part.sampled for part in parts) * counts for parts, counts in zip(rollouts, is_kept, strict=True)]
    weighed = zip(rollouts, values, token_weights(plan, sampled), sampled, strict=True)
    return [
        [WeighedSequence(part, advantage, weight) for part in parts if part.sampled]
        for parts, advantage, weight, tokens in weighed
        if tokens
    ]


def _spread(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0
