"""What a person should look at while a model trains: signs that it learns nothing, or something else than was meant.

Pure, over the curves as they are stored; the job's log and the run page say the same. A sign counts when it has lasted:
single steps are noisy. What to do about each is in `docs/training.md`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

Curve = Sequence[tuple[int, float]]
"""Step and value, ascending."""

LASTING = 3
"""Steps that a sign has to last."""
NO_SIGNAL = 0.9
FAILED = 0.5
TRUNCATED = 0.3
COLLAPSED = 0.2
"""Entropy below this share of what it was at first."""
LONGER = 2.0
REPEATED = 0.3
LEARNED = 0.02
"""A reward that rises by less than this has not risen."""


def training_alarms(curves: Mapping[str, Curve]) -> list[str]:
    """Sentences, the most urgent first; `curves` by the keys they are stored under."""
    return [*_signal(curves), *_entropy(curves), *_truncation(curves), *_hacking(curves)]


def _signal(curves: Mapping[str, Curve]) -> Iterator[str]:
    failed = _last(curves, "rollout/failed_ratio")
    if failed and min(failed) >= FAILED:
        yield (
            f"{_percent(failed)} of the rollouts of the last {LASTING} steps have no reward: open one and see why; "
            "failed rollouts teach nothing."
        )
    silent = _last(curves, "rollout/no_signal_ratio")
    if silent and min(silent) >= NO_SIGNAL:
        yield (
            f"In {_percent(silent)} of the rows of the last {LASTING} steps all attempts have the same reward, so "
            "nothing is learned from them: use rows of mixed difficulty, a finer reward, or more samples per row."
        )


def _entropy(curves: Mapping[str, Curve]) -> Iterator[str]:
    first, last = _first(curves, "train/entropy_loss"), _last(curves, "train/entropy_loss")
    if first and last and _mean(first) > 0 and max(last) < COLLAPSED * _mean(first):
        yield (
            f"The entropy has fallen from {_mean(first):.3g} to {_mean(last):.3g}: the model no longer explores. "
            "Lower lr, raise clip_high or kl, or stop at an earlier checkpoint."
        )


def _truncation(curves: Mapping[str, Curve]) -> Iterator[str]:
    first, last = _first(curves, "rollout/truncated_ratio"), _last(curves, "rollout/truncated_ratio")
    if last and min(last) >= TRUNCATED:
        rising = " and rising" if first and _mean(last) > 1.5 * _mean(first) else ""
        yield (
            f"{_percent(last)} of the rollouts of the last {LASTING} steps were cut off{rising}: raise "
            "max_response_length, or reward shorter answers."
        )


def _hacking(curves: Mapping[str, Curve]) -> Iterator[str]:
    """Signs that the reward is earned in another way than was meant."""
    first, last = _first(curves, "rollout/response_lengths"), _last(curves, "rollout/response_lengths")
    if first and last and min(last) > LONGER * _mean(first) and not _validated(curves):
        yield (
            f"Answers have grown from {_mean(first):.0f} to {_mean(last):.0f} tokens while the validation reward has "
            "not risen: read some, the reward may pay for length."
        )
    first, last = _first(curves, "rollout/repetition_ratio"), _last(curves, "rollout/repetition_ratio")
    if first and last and min(last) > REPEATED and _mean(last) > 2 * _mean(first):
        yield (
            f"Answers repeat themselves more and more ({_percent(last)} of their word groups): read some, the reward "
            "may pay for repetition."
        )


def _validated(curves: Mapping[str, Curve]) -> bool:
    """Whether the reward has risen where it counts: on held-out rows, else on those that are trained on."""
    validation = [value for _, value in curves.get("eval/validation/reward", ())]
    if len(validation) >= 2:
        return validation[-1] > validation[0] + LEARNED
    first, last = _first(curves, "rollout/raw_reward"), _last(curves, "rollout/raw_reward")
    return bool(first and last and _mean(last) > _mean(first) + LEARNED)


def _first(curves: Mapping[str, Curve], key: str) -> list[float]:
    """The first values; empty while there are too few to compare with later ones."""
    values = [value for _, value in curves.get(key, ())]
    return values[:LASTING] if len(values) >= 2 * LASTING else []


def _last(curves: Mapping[str, Curve], key: str) -> list[float]:
    values = [value for _, value in curves.get(key, ())]
    return values[-LASTING:] if len(values) >= LASTING else []


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _percent(values: Sequence[float]) -> str:
    return f"{_mean(values) * 100:.0f} %"
