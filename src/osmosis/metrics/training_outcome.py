"""The figures of training runs, from their curves: `train show`, `train compare` and the pages show the same ones."""

import json
from collections.abc import Iterator, Mapping, Sequence

from osmosis.base.jsonable import iterate_leaves
from osmosis.metrics.figures import Figure, Format
from osmosis.metrics.warnings import Curve
from osmosis.records.api.training import TrainingMetrics

COURSES = (
    ("rollout/raw_reward", "reward", "Training reward"),
    ("eval/validation/reward", "validation_reward", "Validation reward"),
    ("eval/sealed", "sealed_score", "Sealed score"),
)
SUMS: Sequence[tuple[str, str, str, Format, int]] = (
    ("fidelity/sampled_tokens", "sampled_tokens", "Sampled tokens", "count", 1),
    ("train/trained_tokens", "trained_tokens", "Trained tokens", "count", 1),
    ("perf/update_s", "update_ms", "Time in updates", "ms", 1000),
)
"""Curves that are added up over the steps: key, name, label, format and factor."""


def training_figures(
    curves: Mapping[str, Curve], *, rollouts: int | None = None, duration_ms: float | None = None
) -> Iterator[Figure]:
    for key, name, label in COURSES:
        points = curves.get(key)
        if not points:
            continue
        (first_step, first), (last_step, last) = points[0], points[-1]
        step, best = max(points, key=lambda point: (point[1], point[0]))
        detail = f"at step {last_step}; {first:.3f} at step {first_step}"
        yield Figure(f"last_{name}", label, last, detail=detail, headline=True)
        yield Figure(f"best_{name}", f"Best {label.lower()}", best, detail=f"at step {step}", headline=True)
    steps = max((points[-1][0] for points in curves.values() if points), default=0)
    yield Figure("steps", "Steps", steps, "count")
    if rollouts is not None:
        yield Figure("rollouts", "Rollouts", rollouts, "count", detail="validation included")
    for key, name, label, format, factor in SUMS:
        if key in curves:
            yield Figure(name, label, factor * sum(value for _, value in curves[key]), format)
    if duration_ms is not None:
        yield Figure("duration_ms", "Time", duration_ms, "ms")


def list_figures(metrics: TrainingMetrics) -> list[Figure]:
    overview = metrics.overview
    rollouts, duration_ms = (overview.examples_processed_count, overview.duration_ms) if overview else (None, None)
    return list(training_figures(metrics.curves(), rollouts=rollouts, duration_ms=duration_ms))


def list_changed_keys(configs: Sequence[Mapping[str, object]]) -> dict[str, list[str]]:
    leaves = [dict(iterate_leaves(config)) for config in configs]
    changed = {}
    for key in dict.fromkeys(key for values in leaves for key in values):
        written = [config.get(key, "") for config in leaves]
        values = [value if isinstance(value, str) else json.dumps(value) for value in written]
        if len(set(values)) > 1:
            changed[key] = values
    return changed
