"""Rollouts on their way to the disk: gathered while more come, and not a moment longer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from osmosis.engine.journal import Journal
from osmosis.engine.recorder import Recorder
from osmosis.records.plan import EvalPlan
from osmosis.records.rollout import Rollout, RolloutStatus

AN_HOUR = 3600.0


def rollout(row: int) -> Rollout:
    return Rollout(rollout_id=f"{row}-0", row_index=row, attempt=0, row_key=str(row), status=RolloutStatus.SUCCESS)


def test_the_end_of_a_run_waits_for_the_disk_and_not_for_more(
    tmp_path: Path, make_plan: Callable[[], EvalPlan]
) -> None:
    journal, stored = Journal(tmp_path / "r"), list[Rollout]()
    journal.open(make_plan())

    async def go() -> None:
        recorder = Recorder(journal, stored.extend, linger_s=AN_HOUR)
        for batch in ((0, 1), (2,)):
            for row in batch:
                recorder.put(rollout(row))
            assert len(stored) == batch[0]
            await asyncio.wait_for(recorder.drain(), 60)
            assert len(stored) == batch[-1] + 1
        await asyncio.wait_for(recorder.drain(), 60)
        recorder.close()

    asyncio.run(go())
    journal.close()
    assert [line["row_index"] for line in journal.lines()] == [0, 1, 2]
