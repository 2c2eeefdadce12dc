"""Whether a training run has something to learn from, and how long its rollouts take: read off an evaluation.

The evaluation has to be of the same rollout and dataset; the closer its model is to the base model, the truer this is.
Pure: who looks for the evaluation and who asks the person is elsewhere. Only what makes learning impossible refuses.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from osmosis.records.config import TrainingConfig
from osmosis.records.training_plan import TrainingPlan

Severity = Literal["error", "warning", "info"]
MANY_FAILED = 0.1
MOSTLY_SILENT = 0.8
MANY_TRUNCATED = 0.1
CLOSE_TO_LIMIT = 0.5
ENOUGH_GROUPS = 4
"""Fewer rows than these prove nothing."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One rollout of the evaluation."""

    row: str
    """Key of its row."""
    reward: float | None
    """None when it failed."""
    seconds: float
    tokens: int
    """That the model said."""


@dataclass(frozen=True, slots=True)
class Concern:
    """Something to know before training; `error`: nothing could be learned."""

    code: str
    severity: Severity
    what: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Gate:
    """What an evaluation says about a training run. Shares are of rollouts, but `no_signal` of rows."""

    rollouts: int
    groups: int
    """Rows with at least two scored attempts."""
    no_signal: float | None
    """None without such rows."""
    mean_reward: float | None
    failed: float | None
    truncated: float | None
    """Rollouts whose answers fill max_response_length."""
    p95_s: float | None
    least_s: float | None
    """All steps, if the rollouts of a step really run side by side; the updates come on top."""
    findings: list[Concern]

    @property
    def hopeless(self) -> bool:
        return any(finding.severity == "error" for finding in self.findings)


def will_it_train(config: TrainingConfig, plan: TrainingPlan, tried: Sequence[Tried], *, at_once: int | None) -> Gate:
    """`tried` is empty when there is no evaluation; `at_once` is how many rollouts that had in flight."""
    scored: dict[str, list[float]] = defaultdict(list)
    for one in tried:
        if one.reward is not None:
            scored[one.row].append(one.reward)
    rewards = [reward for group in scored.values() for reward in group]
    groups = [group for group in scored.values() if len(group) > 1]
    silent = sum(1 for group in groups if len(set(group)) == 1) / len(groups) if groups else None
    limit = config.training.max_response_length
    p95 = _p95([one.seconds for one in tried])
    gate = Gate(
        rollouts=len(tried),
        groups=len(groups),
        no_signal=silent,
        mean_reward=sum(rewards) / len(rewards) if rewards else None,
        failed=1 - len(rewards) / len(tried) if tried else None,
        truncated=sum(1 for one in tried if one.tokens >= limit) / len(tried) if tried else None,
        p95_s=p95,
        least_s=None if p95 is None else p95 * (plan.steps + plan.validations),
        findings=[],
    )
    gate.findings.extend(_findings(config, plan, gate, rewards, at_once))
    return gate


def will_it_imitate(config: TrainingConfig, plan: TrainingPlan, examples: int) -> Gate:
    """Of `method = "sft"`, which learns from rollouts that are there."""
    findings = []
    if plan.steps == 0:
        what = f"{examples} rollouts to learn from do not fill one step of rollout_batch_size = {plan.batch}"
        fix = "lower min_score or rollout_batch_size, or name a run with more passed rollouts in from_run"
        findings.append(Concern("too-few-examples", "error", what, fix))
    return Gate(examples, 0, None, None, None, None, None, None, findings)


def _p95(values: Sequence[float]) -> float | None:
    return sorted(values)[max(0, math.ceil(0.95 * len(values)) - 1)] if values else None


def _findings(
    config: TrainingConfig, plan: TrainingPlan, gate: Gate, rewards: Sequence[float], at_once: int | None
) -> Iterator[Concern]:
    if plan.steps == 0:
        what = f"{len(plan.rows)} rows do not fill one step of rollout_batch_size = {plan.batch}"
        fix = f"lower rollout_batch_size to {max(1, len(plan.rows))} or less, or add rows"
        yield Concern("too-few-rows", "error", what, fix)
    if not gate.rollouts:
        fix = "osmosis train submit --probe 8, or osmosis eval submit with n = 4 in [evaluation]"
        yield Concern("no-eval", "warning", "no evaluation of this rollout and dataset says what to expect", fix)
        return
    yield from _signal(gate, rewards)
    if gate.truncated and gate.truncated >= MANY_TRUNCATED:
        what = f"{gate.truncated:.0%} of the answers fill max_response_length = {config.training.max_response_length}"
        yield Concern("truncated", "warning", what, "raise max_response_length: what is cut off earns no reward")
    limit = config.training.agent_workflow_timeout_s
    if gate.p95_s and gate.p95_s > CLOSE_TO_LIMIT * limit:
        what = f"one rollout in twenty takes more than {gate.p95_s:.0f} s, and agent_workflow_timeout_s is {limit:.0f}"
        yield Concern("slow", "warning", what, "raise agent_workflow_timeout_s: what runs into it is not learned from")
    if at_once and plan.at_once > 4 * at_once:
        what = f"a step has {plan.at_once} rollouts at once; the evaluation had {at_once}"
        fix = "make sure that tools and services behind the rollout bear that, or lower rollout_batch_size"
        yield Concern("at-once", "info", what, fix)


def _signal(gate: Gate, rewards: Sequence[float]) -> Iterator[Concern]:
    if gate.failed == 1.0:
        yield Concern(
            "all-failed", "error", f"all {gate.rollouts} rollouts of the evaluation failed",
            "osmosis eval info NAME says why; failed rollouts teach nothing",
        )  # fmt: skip
        return
    if gate.failed and gate.failed >= MANY_FAILED:
        what = f"{gate.failed:.0%} of the rollouts of the evaluation failed"
        yield Concern("failed", "warning", what, "osmosis eval info NAME says why; they teach nothing")
    same = len(set(rewards)) == 1
    if gate.no_signal is None:
        severity: Severity = "error" if same and len(rewards) >= 2 * ENOUGH_GROUPS else "warning"
        said = f"all rewards are {rewards[0]:g}" if same else "the evaluation has one attempt per row"
        what = f"{said}: whether attempts at the same row differ, which is what is learned from, is not known"
        if severity == "error":
            what = f"all {len(rewards)} rewards of the evaluation are {rewards[0]:g}: there is nothing to learn from"
        yield Concern("no-signal", severity, what, "evaluate with n = 4 or more in [evaluation]")
    elif gate.no_signal == 1.0 and gate.groups >= ENOUGH_GROUPS:
        what = f"in all {gate.groups} rows every attempt has the same reward: there is nothing to learn from"
        yield Concern("no-signal", "error", what, "use rows of mixed difficulty, a finer reward, or another model")
    elif gate.no_signal >= MOSTLY_SILENT:
        what = f"in {gate.no_signal:.0%} of the rows every attempt has the same reward: little is learned per step"
        yield Concern("no-signal", "warning", what, "use rows of mixed difficulty, or a finer reward")
