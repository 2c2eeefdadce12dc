"""One attempt, from its task to a rollout with its scores: the same in the loop's own process and in its workers.

Whatever the `RolloutFn` or a score function does, the result is one rollout; only a cancellation that is meant passes.
Says which code was left behind, stores nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from osmosis.datasets.groups import groups_of
from osmosis.datasets.scan import row_hash
from osmosis.errors import OsmosisError
from osmosis.metrics.answers import answer_issue
from osmosis.records.dataset import Row
from osmosis.records.rollout import Category, Failure, Phase, Rollout, RolloutStatus, Score
from osmosis.records.sandbox import SandboxChoice
from osmosis.sdk.classify import describe, self_cancelled, traceback_tail
from osmosis.sdk.driven import LoopUse, loop_user
from osmosis.sdk.rollout_sandbox import Hosted, begin

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
        sandbox: SandboxChoice | None = None,
        say: Callable[[str], None],
    ) -> None:
        self._run = run
        self._scorers = scorers
        self._hashes = hashes
        self._group_by = group_by
        self._sandbox = sandbox or SandboxChoice()
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
        sandbox = begin(self._open_sandbox)
        try:
            try:
                rollout = await self._run(task)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - one rollout, and not the others
                rollout = self._broken(task, error)
            if self._scorers and rollout.status is RolloutStatus.SUCCESS:
                task.enter("score")
                scores = await self._scores(rollout, task.row)
                # In the order given, and before a reward of the rollout's own.
                rollout.put(scores={**{score.name: score for score in scores}, **rollout.scores})
        finally:
            self.active.discard(task)
            if sandbox.let_go():
                await sandbox.close()
        for who in task.left_behind:
            self._left_behind += 1
            count = f" ({self._left_behind} in this run)" if self._left_behind > 1 else ""
            self._say(f"{task.name}: {who} ignored its cancellation and was left behind{count}")
        row, fields = task.row, vars(rollout)  # a record's fields cost several times as much by their names
        fields["step"], fields["row_key"], fields["row_index"] = task.step, row.key, row.index
        if fields["status"] is RolloutStatus.SUCCESS:
            fields["answer_issue"] = answer_issue(fields["messages"], fields["finish_reason"])
        if self._group_by:
            fields["groups"] = groups_of(row.data, self._group_by)
        if self._hashes:
            fields["hashes"] = {**self._hashes, "row": row.content_hash or row_hash(row.data)}
        return rollout

    def _open_sandbox(self) -> Hosted:
        from osmosis.sdk.sandbox_opening import opening_of  # all that makes sandboxes: few rollouts open one

        return opening_of(self._sandbox)()

    def whereabouts(self) -> str:
        """What is in flight and where, the longest first."""
        now = time.monotonic()
        longest = sorted(self.active, key=lambda task: task.since)
        shown = [f"{task.name} in {task.stage!r} for {now - task.since:.0f} s" for task in longest[:_NAMED]]
        more = [f"{len(longest) - _NAMED} more"] if len(longest) > _NAMED else []
        return ", ".join([*shown, *more])

    def _broken(self, task: Task, error: BaseException) -> Rollout:
        """What became of a `RolloutFn` that raised. A cancellation that is meant goes on."""
        if isinstance(error, asyncio.CancelledError):
            if self.cutting:
                raise error
            return broken(task, self_cancelled())
        if isinstance(error, OsmosisError):
            return broken(task, Failure(phase=Phase.SETUP, category=Category.UNKNOWN, message=error.message))
        trace = traceback_tail(error)
        failure = Failure(phase=Phase.SETUP, category=Category.UNKNOWN, message=describe(error), traceback=trace)
        return broken(task, failure)

    def _scores(self, rollout: Rollout, row: Row) -> Awaitable[Sequence[Score]]:
        if len(self._scorers) == 1:
            return self._scorers[0].score(rollout, row)
        return self._of_all(rollout, row)

    async def _of_all(self, rollout: Rollout, row: Row) -> list[Score]:
        found = await asyncio.gather(*(scorer.score(rollout, row) for scorer in self._scorers))
        return [score for some in found for score in some]


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
