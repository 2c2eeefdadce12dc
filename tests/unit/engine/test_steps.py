"""How many Python functions run for one rollout: each is a small step, and a rollout is made of little else."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType

from osmosis.engine.in_process import _request
from osmosis.engine.journal import Journal
from osmosis.engine.observer import Silent
from osmosis.engine.task import Task
from osmosis.llm.offline import OfflineModel
from osmosis.llm.openai_compatible import read_usage
from osmosis.records.loop_request import RolloutRequest
from osmosis.records.report import Report
from osmosis.records.rollout import Rollout, Usage

MOST = 178
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


def test_what_is_built_whole_has_every_field(run, make_plan, make_rows, tmp_path):
    """`Record.whole` checks nothing: a field that is added to one of these records has to be given there, too."""
    plan = make_plan(model=make_plan().model.model_copy(update={"kind": "offline", "name": "offline/echo"}))
    seen: list[Rollout] = []

    class Seeing(Silent):
        def rollout(self, rollout: Rollout, running: Report | None) -> None:
            seen.append(rollout)

    asyncio.run(run(plan, make_rows(1), journal=Journal(tmp_path / "j"), observer=Seeing()))
    rollout = seen[0]
    assert rollout.calls
    assert rollout.scores
    for record in (rollout, *rollout.calls, *rollout.scores.values()):
        assert list(vars(record)) == list(type(record).model_fields)
    usage = read_usage({"prompt_tokens": 3, "completion_tokens": 1}, None)
    assert list(vars(usage)) == list(Usage.model_fields)
    request = _request(plan, OfflineModel(plan.model), Task(make_rows(1)[0], 0, "r"), [])
    assert list(vars(request)) == list(RolloutRequest.model_fields)
