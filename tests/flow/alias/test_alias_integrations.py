"""The alias package's integrations: every documented name with the agent library, the extra to install without it.

Apart from the other names because each of them loads a whole agent library.
"""

import importlib
import importlib.util

import pytest

EXTRAS = {
    "osmosis_ai.rollout.integrations.agents.openai_agents": (
        "agents",
        "OsmosisAgent OsmosisMemorySession OsmosisRolloutModel OsmosisLitellmModel",
    ),
    "osmosis_ai.rollout.integrations.agents.strands": ("strands", "OsmosisStrandsAgent OsmosisRolloutModel"),
}


@pytest.mark.parametrize("module", EXTRAS)
def test_integrations_are_there_or_name_their_extra(module: str) -> None:
    library, names = EXTRAS[module]
    if importlib.util.find_spec(library) is None:
        with pytest.raises(ImportError, match="pip install"):
            importlib.import_module(module)
        return
    found = importlib.import_module(module)
    assert all(hasattr(found, name) for name in names.split())
