"""How many Python functions run for one rollout: each is a small step, and a rollout is made of little else."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType

from osmosis.engine.journal import Journal

MOST = 190
"""From the row to the journal and the figures, without a network; coroutines count each time they go on."""
NOT_COUNTED = str(Path(asyncio.__file__).parent)
"""How often the event loop goes round is a matter of time."""


def test_a_rollout_takes_few_calls(run, make_plan, make_rows, tmp_path):
    def calls_of(rows: int) -> Counter[str]:
        found: Counter[str] = Counter()

        def saw(frame: FrameType, event: str, _: object) -> None:
            if event == "call" and not frame.f_code.co_filename.startswith(NOT_COUNTED):
                found[f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}"] += 1

        plan = make_plan(model=make_plan().model.model_copy(update={"kind": "offline", "name": "offline/echo"}))
        threading.setprofile(saw)
        sys.setprofile(saw)
        try:
            asyncio.run(run(plan, make_rows(rows), journal=Journal(tmp_path / str(rows))))
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        return found

    calls_of(2)  # whatever happens once
    few, many = calls_of(20), calls_of(220)
    each = Counter({name: (count - few[name]) / 200 for name, count in many.items()})
    assert sum(each.values()) <= MOST, each.most_common(30)
