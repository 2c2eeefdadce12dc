"""The figures of a step that the rollouts tell: under the keys of the curves, computed from what is stored, so that a
step that is replayed has the same figures again. What the update tells (loss, KL, ...) is the trainer's to say.
"""

from __future__ import annotations

from collections.abc import Sequence

from .step_journal import Kind, StoredPart, StoredStepRollout

GRAM = 4
"""Repetition is looked for among runs of so many tokens."""


def step_figures(rollouts: Sequence[StoredStepRollout], kind: Kind) -> dict[str, float]:
    """Means over rollouts; a figure that cannot be computed is left out."""
    if not rollouts:
        return {}
    rewards = [one.reward for one in rollouts if one.reward is not None]
    failed = sum(1 for one in rollouts if one.reward is None) / len(rollouts)
    if kind == "validation":
        found = {"eval/validation/failed_ratio": failed}
        return {"eval/validation/reward": _mean(rewards), **found} if rewards else found
    spoken = [one for one in rollouts if one.tokens]
    figures = {
        "rollout/failed_ratio": failed,
        "rollout/no_signal_ratio": no_signal(rollouts),
        "rollout/forks": float(sum(max(0, len(one.tokens) - 1) for one in rollouts)),
        "rollout/malformed_calls": float(sum(one.malformed_calls for one in rollouts)),
    }
    if rewards:
        figures["rollout/raw_reward"] = _mean(rewards)
    if spoken:
        figures |= {
            "rollout/response_lengths": _mean([_said(one) for one in spoken]),
            "rollout/total_lengths": _mean([_length(one) for one in spoken]),
            "rollout/truncated_ratio": _mean([any(part.truncated for part in one.tokens) for one in spoken]),
            "rollout/turns": _mean([sum(part.turns for part in one.tokens) for one in spoken]),
            "rollout/repetition_ratio": _mean([_repetition(one) for one in spoken]),
        }
    return figures


def no_signal(rollouts: Sequence[StoredStepRollout]) -> float:
    """Share of the rows whose scored attempts all have the same reward: there is nothing to learn from those."""
    groups: dict[int, set[float]] = {}
    for one in rollouts:
        group = groups.setdefault(one.row_index, set())
        if one.reward is not None:
            group.add(one.reward)
    return sum(1 for group in groups.values() if len(group) < 2) / len(groups) if groups else 1.0


def spoken_tokens(rollouts: Sequence[StoredStepRollout]) -> int:
    """Tokens that the model sampled."""
    return sum(_said(one) for one in rollouts)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _said(rollout: StoredStepRollout) -> int:
    return sum(sum(part.mask) for part in rollout.tokens)


def _length(rollout: StoredStepRollout) -> int:
    return sum(len(part.prompt_token_ids) + len(part.completion_token_ids) for part in rollout.tokens)


def _repetition(rollout: StoredStepRollout) -> float:
    """Share of the runs of `GRAM` tokens in the model's words that had come before in the same answer."""
    runs = seen = 0
    for answer in (answer for part in rollout.tokens for answer in _answers(part)):
        grams = [tuple(answer[at : at + GRAM]) for at in range(len(answer) - GRAM + 1)]
        runs += len(grams)
        seen += len(grams) - len(set(grams))
    return seen / runs if runs else 0.0


def _answers(part: StoredPart) -> list[list[int]]:
    """The model's answers, token for token."""
    answers: list[list[int]] = []
    before = 0
    for token, own in zip(part.completion_token_ids, part.mask, strict=True):
        if own and not before:
            answers.append([])
        if own:
            answers[-1].append(token)
        before = own
    return answers
