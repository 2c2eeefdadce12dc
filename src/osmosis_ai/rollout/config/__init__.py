"""Settings from `OSMOSIS_ROLLOUT_*`."""

from osmosis.serve.server.rollout_settings import (
    RolloutClientSettings as RolloutClientSettings,
)
from osmosis.serve.server.rollout_settings import (
    RolloutServerSettings as RolloutServerSettings,
)
from osmosis.serve.server.rollout_settings import (
    RolloutSettings as RolloutSettings,
)
from osmosis.serve.server.rollout_settings import (
    configure as configure,
)
from osmosis.serve.server.rollout_settings import (
    get_settings as get_settings,
)
from osmosis.serve.server.rollout_settings import (
    reset_settings as reset_settings,
)

__all__ = [
    "RolloutClientSettings",
    "RolloutServerSettings",
    "RolloutSettings",
    "configure",
    "get_settings",
    "reset_settings",
]
