"""How a training run ends without a model: each way with what happened, where, and what to change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from osmosis.errors import OsmosisError
from osmosis.records.rollout import Category, Failure, Phase
from osmosis.training.link import Failed

from .step_journal import StoredStepRollout

SILENT_STEPS = 3
"""So many first steps without any signal, and the run ends: it would learn nothing."""
_CATEGORIES = {
    "model": Category.MODEL_NOT_FOUND,
    "memory": Category.BUDGET,
    "data": Category.BAD_REQUEST,
    "diverged": Category.UNKNOWN,
    "engine": Category.CONNECTION,
    "bug": Category.UNKNOWN,
}
FIXES = {
    "memory": "lower [training].rollout_batch_size or max_response_length, raise [advanced].gradient_accumulation, "
    "turn on gradient_checkpointing, or train a smaller base model",
    "diverged": "lower [training].lr, then `osmosis train retry`; the checkpoints before this step are kept",
    "bug": "this is a bug in osmosis: report it with the run's log",
}
_TOO_LATE = "raise [training].agent_workflow_timeout_s, or lower rollout_batch_size or max_response_length"
_TOO_LONG = "raise [training].max_prompt_length, or shorten the prompts"


class TrainingRunFailed(OsmosisError):
    """The run cannot go on; `failure` is what a person reads."""

    code = "TRAINING_FAILED"

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message, hint=failure.fix)
        self.failure = failure


class TrainerLost(OsmosisError):
    """The trainer no longer answers: it is started again, from its last checkpoint."""

    code = "TRAINER_LOST"


def of_trainer(said: Failed) -> TrainingRunFailed:
    """What the trainer itself gave as its reason."""
    where = f"step {said.step}: " if said.step else ""
    return TrainingRunFailed(
        Failure(
            phase=Phase.MODEL,
            category=_CATEGORIES[said.category],
            message=f"{where}{said.message}",
            traceback=said.traceback,
            fix=said.fix or FIXES.get(said.category),
        )
    )


def nothing_scored(step: int, rollouts: Sequence[StoredStepRollout]) -> TrainingRunFailed:
    """No rollout of a step has a reward: the commonest reason is the run's."""
    reasons = Counter(one.failure or "left out by the rollout itself" for one in rollouts)
    reason, count = reasons.most_common(1)[0]
    category = _category(reason)
    fix = {Category.TIMEOUT: _TOO_LATE, Category.CONTEXT_LENGTH: _TOO_LONG}.get(
        category,
        "open one of them on the run's page; `osmosis eval submit` with the same rollout shows the same failure",
    )
    message = f"step {step}: none of {len(rollouts)} rollouts has a reward; {count} failed with {reason}"
    return TrainingRunFailed(Failure(phase=Phase.AGENT, category=category, message=message[:2000], fix=fix))


def cut_short(step: int, why: str) -> TrainingRunFailed:
    """The engine gave up on a step."""
    fix = "see the failed rollouts of this step on the run's page; fix the cause, then `osmosis train resume`"
    category = next((one for one in Category if f"with {one.value}:" in why), Category.UNKNOWN)
    if category is Category.TIMEOUT:
        fix = _TOO_LATE
    return TrainingRunFailed(Failure(phase=Phase.AGENT, category=category, message=f"step {step}: {why}", fix=fix))


def nothing_to_learn(rewards: Sequence[float | None]) -> TrainingRunFailed:
    """Every group of the first steps scored the same."""
    known = sorted({round(value, 6) for value in rewards if value is not None})
    all_the_same = f": every reward is {known[0]:g}" if len(known) == 1 else ""
    if len(known) == 1 and known[0] > 0:
        fix = "the base model solves these rows already: train on harder ones"
    else:
        fix = "check the grader with `osmosis eval submit`, use easier rows, a finer reward or a better base model"
    what = f"in the first {SILENT_STEPS} steps all attempts at a row had the same reward{all_the_same}"
    message = f"{what}; nothing can be learned"
    return TrainingRunFailed(Failure(phase=Phase.SCORE, category=Category.INVALID_SCORE, message=message, fix=fix))


def _category(reason: str) -> Category:
    name = reason.partition(":")[0]
    return Category(name) if name in {one.value for one in Category} else Category.UNKNOWN
