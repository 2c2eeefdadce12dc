"""The curves of a training run: what each is called, in which order they are shown, which a person looks at first.

Keys are those of the platform's API; the terminal and the pages read this one list. A curve that is not in it is shown
last, under its key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CurveInfo:
    """One curve."""

    key: str
    name: str
    """Short, for tables and files."""
    title: str
    group: str
    about: str
    """What it tells, in one line."""


_REWARD, _ANSWERS, _UPDATE, _TIME = "Reward", "Rollouts", "Update", "Time"
CURVES: Sequence[CurveInfo] = (
    CurveInfo("rollout/raw_reward", "training_reward", "Training reward", _REWARD, "mean over a step's rollouts"),
    CurveInfo(
        "eval/validation/reward", "validation_reward", "Validation reward", _REWARD, "mean over the held-out rows"
    ),
    CurveInfo("rollout/reward_std", "reward_std", "Reward spread", _REWARD, "standard deviation in a step"),
    CurveInfo(
        "rollout/no_signal_ratio",
        "no_signal",
        "Rows without signal",
        _REWARD,
        "share of rows whose attempts all have the same reward: nothing is learned from them",
    ),
    CurveInfo(
        "rollout/failed_ratio", "failed", "Failed rollouts", _REWARD, "share without a reward; no part of any statistic"
    ),
    CurveInfo(
        "eval/validation/failed_ratio", "validation_failed", "Failed validation rollouts", _REWARD, "share of them"
    ),
    CurveInfo("rollout/response_lengths", "response_length", "Response length", _ANSWERS, "tokens the model said"),
    CurveInfo("rollout/total_lengths", "total_length", "Total length", _ANSWERS, "tokens with prompt and environment"),
    CurveInfo("rollout/truncated_ratio", "truncation_ratio", "Truncated", _ANSWERS, "share cut off by a length limit"),
    CurveInfo("rollout/repetition_ratio", "repetition", "Repetition", _ANSWERS, "share of repeated word groups"),
    CurveInfo("rollout/turns", "turns", "Turns", _ANSWERS, "answers of the model per rollout"),
    CurveInfo("rollout/forks", "forks", "Forks", _ANSWERS, "histories that were rewritten in a step"),
    CurveInfo(
        "rollout/forked_tokens_ratio",
        "forked_tokens",
        "Tokens of forks",
        _ANSWERS,
        "share that is left out",
    ),
    CurveInfo("rollout/malformed_calls", "malformed_calls", "Malformed tool calls", _ANSWERS, "in a step"),
    CurveInfo("train/entropy_loss", "entropy", "Entropy", _UPDATE, "how undecided the model is, nats per token"),
    CurveInfo("train/kl", "kl", "KL", _UPDATE, "distance from the base model, or from the sampled policy"),
    CurveInfo("train/clip_ratio", "clip_ratio", "Clipped", _UPDATE, "share of tokens whose ratio was clipped"),
    CurveInfo("train/clip_ratio_low", "clip_ratio_low", "Clipped below", _UPDATE, "share of tokens, by `clip`"),
    CurveInfo("train/clip_ratio_high", "clip_ratio_high", "Clipped above", _UPDATE, "share of tokens, by `clip_high`"),
    CurveInfo("train/token_accuracy", "token_accuracy", "Token accuracy", _UPDATE, "share that was foreseen"),
    CurveInfo("train/grad_norm", "grad_norm", "Gradient norm", _UPDATE, "before it is limited"),
    CurveInfo("train/loss", "loss", "Loss", _UPDATE, "near 0 for GRPO: advantages cancel out"),
    CurveInfo("train/lr", "lr", "Learning rate", _UPDATE, ""),
    CurveInfo("perf/tokens_per_s", "tokens_per_s", "Tokens per second", _TIME, "sampled"),
    CurveInfo("perf/rollout_s", "rollout_s", "Rollouts, seconds", _TIME, "of a step"),
    CurveInfo("perf/update_s", "update_s", "Update, seconds", _TIME, "of a step"),
    CurveInfo("perf/wait_s", "wait_s", "Waiting, seconds", _TIME, "of a step: neither rollouts nor update"),
)
_BY_KEY: Mapping[str, tuple[int, CurveInfo]] = {info.key: (at, info) for at, info in enumerate(CURVES)}


def curve_info(key: str) -> CurveInfo:
    """What a curve is called; by its key where it is not known."""
    return _BY_KEY[key][1] if key in _BY_KEY else CurveInfo(key, key, key, "Other", "")


def in_order(keys: Iterable[str]) -> list[str]:
    """Keys as they are shown."""
    return sorted(keys, key=lambda key: (_BY_KEY[key][0] if key in _BY_KEY else len(_BY_KEY), key))


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """A curve in one line of text; more points than `width` are averaged in groups."""
    marks = "▁▂▃▄▅▆▇█"
    if not values:
        return ""
    count = min(width, len(values))
    groups = [values[at * len(values) // count : (at + 1) * len(values) // count] for at in range(count)]
    means = [sum(group) / len(group) for group in groups]
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(marks[min(7, int((mean - low) / span * 8))] for mean in means)
