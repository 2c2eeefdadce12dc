"""The figures of a step from its stored rollouts: a replayed step has the same ones."""

import math
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev

import orjson

from osmosis.base.stats import quantile
from osmosis.metrics.warnings import training_alarms
from osmosis.records.run.job import MetricPoint
from osmosis.training.protocol.messages import Kind
from osmosis.training.protocol.plans import TrainerPlan
from osmosis.training.step_journal import StoredPart, StoredStepRollout

GRAM = 4
SEALED = "sealed"
"""The metric of a rollout that the sealed grader gives."""
APART = ("rollout/raw_reward", "rollout/no_signal_ratio", "eval/validation/reward", "eval/sealed")
"""Figures that each environment of a mixture has for itself."""
_RUNS = re.compile(rb"\x01+")


def step_figures(rollouts: Sequence[StoredStepRollout], kind: Kind) -> dict[str, float]:
    if not rollouts:
        return {}
    rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    failed = sum(1 for rollout in rollouts if rollout.reward is None) / len(rollouts)
    if kind == "validation":
        validation = {"eval/validation/failed_ratio": failed}
        if sealed := [rollout.metrics[SEALED] for rollout in rollouts if SEALED in rollout.metrics]:
            validation["eval/sealed"] = fmean(sealed)
        return {"eval/validation/reward": fmean(rewards), **validation} if rewards else validation
    spoken = [rollout for rollout in rollouts if rollout.tokens]
    figures = {
        "rollout/failed_ratio": failed,
        "rollout/no_signal_ratio": no_signal_ratio(rollouts),
        "rollout/forks": float(sum(max(0, len(rollout.tokens) - 1) for rollout in rollouts)),
        "rollout/malformed_calls": float(sum(rollout.malformed_calls for rollout in rollouts)),
        **fidelity_figures(rollouts),
    }
    if rewards:
        figures |= {"rollout/raw_reward": fmean(rewards), "rollout/reward_std": pstdev(rewards)}
        figures |= {f"rollout/reward_p{rank}": quantile(sorted(rewards), rank / 100) for rank in (10, 50, 90)}
        parts = [(score.parts or {}) for rollout in rollouts for score in rollout.scores.values()]
        for name in dict.fromkeys(name for named in parts for name in named):
            figures[f"rollout/reward/{name}"] = fmean([named[name] for named in parts if name in named])
    if spoken:
        figures |= {
            "rollout/response_lengths": fmean([_count_sampled(rollout) for rollout in spoken]),
            "rollout/total_lengths": fmean(
                [
                    sum(len(part.prompt_token_ids) + len(part.completion_token_ids) for part in rollout.tokens)
                    for rollout in spoken
                ]
            ),
            "rollout/truncated_ratio": fmean([any(part.truncated for part in rollout.tokens) for rollout in spoken]),
            "rollout/turns": fmean([sum(part.turns for part in rollout.tokens) for rollout in spoken]),
            "rollout/repetition_ratio": fmean([_repetition(rollout) for rollout in spoken]),
        }
    return figures


def environment_figures(plan: TrainerPlan, rollouts: Sequence[StoredStepRollout], kind: Kind) -> dict[str, float]:
    figures: dict[str, float] = {}
    for at, environment in enumerate(plan.environments):
        own = step_figures([each for each in rollouts if plan.find_environment(each.row_index) == at], kind)
        figures |= {f"{key}/{environment.name}": own[key] for key in APART if key in own}
    scored = [(rollout.row_index, rollout.reward) for rollout in rollouts if rollout.reward is not None]
    if kind == "validation" and (reward := plan.mean_reward(scored)) is not None:
        figures["eval/validation/reward"] = reward
    return figures


def no_signal_ratio(rollouts: Sequence[StoredStepRollout]) -> float:
    """Return the share of the rows whose scored attempts all have the same reward, which teach nothing."""
    groups: dict[int, set[float]] = {}
    for rollout in rollouts:
        group = groups.setdefault(rollout.row_index, set())
        if rollout.reward is not None:
            group.add(rollout.reward)
    return sum(1 for group in groups.values() if len(group) < 2) / len(groups) if groups else 1.0


def count_sampled_tokens(rollouts: Sequence[StoredStepRollout]) -> int:
    return sum(_count_sampled(rollout) for rollout in rollouts)


def fidelity_figures(rollouts: Sequence[StoredStepRollout]) -> dict[str, float]:
    """Return what became of the sampled tokens; some in two sequences, or in none, are a bug, and an alarm."""
    kept = {id(rollout): _count_sampled(rollout) for rollout in rollouts}
    apart = [kept[id(r)] - r.sampled_tokens for r in rollouts if r.sampled_tokens is not None]
    return {
        "fidelity/sampled_tokens": float(sum(kept.values()) - sum(apart)),
        "fidelity/unscored_tokens": float(sum(kept[id(r)] for r in rollouts if r.reward is None)),
        "fidelity/twice": float(sum(max(0, difference) for difference in apart)),
        "fidelity/lost": float(sum(max(0, -difference) for difference in apart)),
        "fidelity/repaired": float(sum(r.repaired_calls for r in rollouts)),
    }


def _count_sampled(rollout: StoredStepRollout) -> int:
    return sum(sum(part.mask) for part in rollout.tokens)


def _repetition(rollout: StoredStepRollout) -> float:
    runs = repeated = 0
    for answer in (answer for part in rollout.tokens for answer in _answers(part)):
        count = max(0, len(answer) - GRAM + 1)
        runs += count
        repeated += count - len(set(zip(*(answer[at:] for at in range(GRAM)), strict=False)))
    return repeated / runs if runs else 0.0


def _answers(part: StoredPart) -> list[list[int]]:
    return [part.completion_token_ids[run.start() : run.end()] for run in _RUNS.finditer(bytes(part.mask))]


class MetricsFile:
    """An append-only file, which a resumed job reads; of a step that is done again the last value counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._values: dict[str, dict[int, float]] = {}
        self._told: set[str] = set()
        for line in path.read_bytes().splitlines() if path.exists() else ():
            try:
                point = orjson.loads(line)
                self._values.setdefault(point["key"], {})[point["step"]] = point["value"]
            except (orjson.JSONDecodeError, KeyError, TypeError):
                continue  # the line that was being written when the job was killed
        self._told.update(_kind(text) for text in self.alarms())

    def add(self, step: int, values: Mapping[str, float]) -> list[MetricPoint]:
        points = [MetricPoint(key=k, step=step, value=v) for k, v in values.items() if math.isfinite(v)]
        for point in points:
            self._values.setdefault(point.key, {})[step] = point.value
        at = time.time()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            lines = ({"step": step, "key": p.key, "value": p.value, "at": round(at, 3)} for p in points)
            file.write(b"".join(orjson.dumps(line) + b"\n" for line in lines))
        return points

    def find(self, key: str, step: int) -> float | None:
        return self._values.get(key, {}).get(step)

    def total(self, key: str) -> float:
        return sum(self._values.get(key, {}).values())

    def points(self) -> list[MetricPoint]:
        return [
            MetricPoint(key=key, step=step, value=value)
            for key, values in self._values.items()
            for step, value in sorted(values.items())
        ]

    def alarms(self) -> list[str]:
        return training_alarms({key: sorted(values.items()) for key, values in self._values.items()})

    def new_alarms(self) -> list[str]:
        now = {_kind(text): text for text in self.alarms()}
        new = [text for kind, text in now.items() if kind not in self._told]
        self._told = set(now)
        return new


def _kind(text: str) -> str:
    return "".join(char for char in text if not char.isdigit() and char not in ".-")
