"""Runs a grader over what a workflow left behind: time limit, slots, and what counts as a reward.

Every backend grades here, in the process of the backend. Whatever a grader does, there is one result; a grading that
failed never leaves a reward behind.
"""

from __future__ import annotations

import math
from pathlib import Path

from osmosis.base.plain_json import own_copy
from osmosis.records.rollout import Category, Failure, Phase
from osmosis.records.wire import RolloutInit

from .calls import SelfCancelled, run_with_deadline
from .classify import failure_of, wire_category
from .context import GraderContext
from .execution import ExecutionResult, OnState, Slots, cancelled_result, limit_of, resolve_class, with_failure
from .grader import Grader, GraderClass
from .types import GraderConfig, RolloutSample


class Grading:
    """One backend's grader; one instance of its class is made per rollout, with its config."""

    def __init__(
        self, grader: GraderClass | str, config: GraderConfig | None = None, project_path: Path | None = None
    ) -> None:
        self.grader: GraderClass = resolve_class(grader, Grader)
        self.config = config
        self.project_path = project_path
        self._slots = Slots(limit_of(config) if config else None)

    async def judge(
        self, init: RolloutInit, result: ExecutionResult, *, artifacts_dir: Path | None, tell: OnState
    ) -> ExecutionResult:
        """`result`, graded: the same object, with a reward on its sample or with the failure of the grader."""
        sample = result.sample
        assert sample is not None
        if init.label is None and not init.metadata:
            failure = Failure(
                phase=Phase.SCORE,
                category=Category.SCORE_ERROR,
                message="the row has neither a label nor metadata to grade against",
                fix="add a ground_truth (or label) column to the dataset",
            )
            return with_failure(result, failure, "validation_error")
        try:
            async with self._slots.one():
                tell("grading")
                await run_with_deadline(
                    self._grade(init, sample, artifacts_dir), init.grader_timeout_sec, name=f"grader {init.rollout_id}"
                )
        except SelfCancelled:
            cancelled = cancelled_result(Phase.SCORE)
            cancelled.sample = sample
            return cancelled
        except Exception as exc:  # noqa: BLE001 - one rollout: user code may raise anything
            sample.reward = None
            failure = failure_of(exc, Phase.SCORE)
            return with_failure(result, failure, wire_category(failure, exc))
        if sample.remove_sample or (sample.reward is not None and math.isfinite(sample.reward)):
            result.graded = True
            return result
        failure = Failure(
            phase=Phase.SCORE,
            category=Category.INVALID_SCORE,
            message=f"{self.grader.__name__}.grade did not set a reward",
            fix="call ctx.set_reward(x) with a finite number, or set ctx.sample.remove_sample = True",
        )
        return with_failure(result, failure, "validation_error")

    async def _grade(self, init: RolloutInit, sample: RolloutSample, artifacts_dir: Path | None) -> None:
        await self.grader(self.config).grade(
            GraderContext(
                label=init.label,
                sample=sample,
                project_path=self.project_path,
                metadata={key: own_copy(value) for key, value in (init.metadata or {}).items()},
                artifacts_dir=artifacts_dir,
                config=self.config,
                rollout_id=init.rollout_id or "",
            )
        )
