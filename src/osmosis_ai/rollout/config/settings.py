"""Settings from `OSMOSIS_ROLLOUT_*`."""

from osmosis.sdk.settings import (
    RolloutClientSettings as RolloutClientSettings,
)
from osmosis.sdk.settings import (
    RolloutServerSettings as RolloutServerSettings,
)
from osmosis.sdk.settings import (
    RolloutSettings as RolloutSettings,
)
from osmosis.sdk.settings import (
    configure as configure,
)
from osmosis.sdk.settings import (
    get_settings as get_settings,
)
from osmosis.sdk.settings import (
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
