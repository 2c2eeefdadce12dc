"""Plans for the tests of figures."""

import pytest

from osmosis.records.run.plan import EvalPlan, ModelSpec


def _plan(**changes):
    given = {
        "name": "t",
        "agent": "helpers_agents:chat",
        "model": ModelSpec.parse("offline/calculator"),
        "dataset": "d.jsonl",
    }
    return EvalPlan(**{**given, **changes})


@pytest.fixture
def make_plan():
    return _plan
