"""One attempt, from its task to a rollout with its scores: the same in the loop's own process and in its workers.

Whatever the `RolloutFn` or a score function does, the result is one rollout; only a cancellation that is meant passes.
Says which code was left behind, stores nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from osmosis.datasets.groups import groups_of
from osmosis.datasets.scan import row_hash
from osmosis.errors import OsmosisError
from osmosis.metrics.answers import answer_issue
from osmosis.records.rollout import Category, Failure, Phase, Rollout, RolloutStatus
from osmosis.records.sandbox import SandboxChoice
from osmosis.sdk.classify import describe, self_cancelled, traceback_tail
from osmosis.sdk.driven import LoopUse, loop_user
from osmosis.sdk.rollout_sandbox import Opening, begin, opening_of

from .scoring import Scorer
from .task import RolloutFn, Task

_NAMED = 3
"""How many rollouts are named in one line."""


class Attempts:
    """Runs and scores attempts on one event loop; knows those in flight."""

    def __init__(
        self,
        run: RolloutFn | None,
        scorers: Sequence[Scorer],
        *,
        hashes: Mapping[str, str] | None = None,
        group_by: Sequence[str] = (),
        sandbox: Opening | None = None,
        say: Callable[[str], None],
    ) -> None:
        self._run = run
        self._scorers = scorers
        self._hashes = hashes
        self._group_by = group_by
        self._sandbox = sandbox or opening_of(SandboxChoice())
        self._say = say
        self._left_behind = 0
        self.active: set[Task] = set()
        self.loop_use = LoopUse()
        self.cutting = False
        """Set before attempts are cancelled: their cancellation is nobody's failure."""

    async def one(self, task: Task) -> Rollout:
        assert self._run is not None
        self.active.add(task)
        task.loop_use = self.loop_use
        loop_user.set(task)
        sandbox = begin(self._sandbox)
        try:
            rollout = await self._rollout(self._run, task)
            if self._scorers and rollout.status is RolloutStatus.SUCCESS:
                await self._score(rollout, task)
        finally:
            self.active.discard(task)
            if sandbox.let_go():
                await sandbox.close()
        for who in task.left_behind:
            self._left_behind += 1
            count = f" ({self._left_behind} in this run)" if self._left_behind > 1 else ""
            self._say(f"{task.name}: {who} went on after its cancellation and was left behind{count}")
        row = task.row
        found: dict[str, object] = {"step": task.step, "row_key": row.key, "row_index": row.index}
        if rollout.status is RolloutStatus.SUCCESS:
            found["answer_issue"] = answer_issue(rollout.messages, rollout.finish_reason)
        if self._group_by:
            found["groups"] = groups_of(row.data, self._group_by)
        if self._hashes:
            found["hashes"] = {**self._hashes, "row": row.content_hash or row_hash(row.data)}
        rollout.put(**found)
        return rollout

    def whereabouts(self) -> str:
        """What is in flight and where, the longest first."""
        now = time.monotonic()
        longest = sorted(self.active, key=lambda task: task.since)
        shown = [f"{task.name} in {task.stage!r} for {now - task.since:.0f} s" for task in longest[:_NAMED]]
        more = [f"{len(longest) - _NAMED} more"] if len(longest) > _NAMED else []
        return ", ".join([*shown, *more])

    async def _rollout(self, run: RolloutFn, task: Task) -> Rollout:
        try:
            return await run(task)
        except asyncio.CancelledError:
            if self.cutting:
                raise
            return broken(task, self_cancelled())
        except OsmosisError as error:
            return broken(task, Failure(phase=Phase.SETUP, category=Category.UNKNOWN, message=error.message))
        except Exception as error:  # noqa: BLE001 - one rollout: it must not end the others
            message = describe(error)
            failure = Failure(
                phase=Phase.SETUP, category=Category.UNKNOWN, message=message, traceback=traceback_tail(error)
            )
            return broken(task, failure)

    async def _score(self, rollout: Rollout, task: Task) -> None:
        task.enter("score")
        if len(self._scorers) == 1:
            scores = await self._scorers[0].score(rollout, task.row)
        else:
            found = await asyncio.gather(*(scorer.score(rollout, task.row) for scorer in self._scorers))
            scores = [score for some in found for score in some]
        # In the order given, and before a reward of the rollout's own.
        rollout.put(scores={**{score.name: score for score in scores}, **rollout.scores})


def broken(task: Task, failure: Failure) -> Rollout:
    """A rollout whose function raised, which it must not do: the environment around it is broken."""
    return Rollout(
        rollout_id=task.rollout_id,
        row_index=task.row.index,
        attempt=task.attempt,
        status=RolloutStatus.FAILED,
        messages=task.row.messages(),
        failure=failure,
    )
