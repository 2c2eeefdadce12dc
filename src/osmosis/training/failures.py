from collections import Counter
from collections.abc import Sequence

from osmosis.errors import OsmosisError
from osmosis.records.config.advanced import FAILURES_OF_POLICIES
from osmosis.records.run.rollout import Category, Failure, Phase
from osmosis.training.protocol.messages import Failed
from osmosis.training.step_journal import StoredStepRollout

MANY = 0.25  # Share of failed rollouts from which on they, and not the rows, are why nothing is learned
SILENT_STEPS = 3  # First steps without any signal after which the run ends: it would learn nothing
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
    "diverged": "lower [training].lr, then `osmosis train resume --fresh`; the checkpoints before this step are kept",
    "bug": "this is a bug in osmosis: report it with the run's log",
}
_TOO_LATE = "raise [training].agent_workflow_timeout_s, or lower rollout_batch_size or max_response_length"
_TOO_LONG = "raise [training].max_prompt_length, or shorten the prompts"


class TrainingRunFailed(OsmosisError):
    code = "TRAINING_FAILED"

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message, hint=failure.fix)
        self.failure = failure


class TrainerLost(OsmosisError):
    code = "TRAINER_LOST"


def trainer_failure(event: Failed) -> TrainingRunFailed:
    where = f"step {event.step}: " if event.step else ""
    return TrainingRunFailed(
        Failure(
            phase=Phase.MODEL,
            category=_CATEGORIES[event.category],
            message=f"{where}{event.message}",
            traceback=event.traceback,
            fix=event.fix or FIXES.get(event.category),
        )
    )


def nothing_scored(step: int, rollouts: Sequence[StoredStepRollout]) -> TrainingRunFailed:
    reasons = Counter(rollout.reason or "left out by the rollout itself" for rollout in rollouts)
    reason, count = reasons.most_common(1)[0]
    category = _category(reason)
    usual = "open one of them on the run's page; `osmosis eval submit` with the same rollout shows the same failure"
    fix = {Category.TIMEOUT: _TOO_LATE, Category.CONTEXT_LENGTH: _TOO_LONG}.get(category, usual)
    message = f"step {step}: none of {len(rollouts)} rollouts has a reward; {count} failed with {reason}"
    return TrainingRunFailed(Failure(phase=Phase.AGENT, category=category, message=message[:2000], fix=fix))


def cut_short(step: int, reason: str) -> TrainingRunFailed:
    fix = "see the failed rollouts of this step on the run's page; fix the cause, then `osmosis train resume`"
    category = next((category for category in Category if f"with {category.value}:" in reason), Category.UNKNOWN)
    if category is Category.TIMEOUT:
        fix = _TOO_LATE
    return TrainingRunFailed(Failure(phase=Phase.AGENT, category=category, message=f"step {step}: {reason}", fix=fix))


def nothing_to_learn(rollouts: Sequence[StoredStepRollout]) -> TrainingRunFailed:
    distinct = sorted({round(rollout.reward, 6) for rollout in rollouts if rollout.reward is not None})
    all_the_same = f": every reward is {distinct[0]:g}" if len(distinct) == 1 else ""
    reasons = Counter(_category(rollout.reason) for rollout in rollouts if rollout.reward is None and rollout.reason)
    failed = sum(reasons.values())
    if failed >= len(rollouts) * MANY:
        category, count = reasons.most_common(1)[0]
        all_the_same += f", and {failed} of {len(rollouts)} rollouts of the last one failed,"
        all_the_same += f" {count} with {category.value}"
        fix = "open one of them on the run's page; "
        if category in FAILURES_OF_POLICIES:
            fix += f"[advanced.failures] {category.value} = 0 makes that a result to learn from"
        else:
            fix += "what failed has no reward and teaches nothing"
    elif len(distinct) == 1 and distinct[0] > 0:
        fix = "the base model solves these rows already: train on harder ones"
    else:
        fix = "check the grader with `osmosis eval submit`, use easier rows, a finer reward or a better base model"
    summary = f"in the first {SILENT_STEPS} steps all attempts at a row had the same reward{all_the_same}"
    message = f"{summary}; nothing can be learned"
    return TrainingRunFailed(Failure(phase=Phase.SCORE, category=Category.INVALID_SCORE, message=message, fix=fix))


def _category(reason: str) -> Category:
    name = reason.partition(":")[0]
    return Category(name) if name in {category.value for category in Category} else Category.UNKNOWN
