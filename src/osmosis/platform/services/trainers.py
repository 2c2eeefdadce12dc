"""Whether this platform can train. Looks for the trainer without importing it: the platform loads no torch."""

from __future__ import annotations

from importlib.util import find_spec

from osmosis.errors import PlatformError

NEEDED = ("osmosis.training", "torch", "trl", "peft")


class NoTrainer(PlatformError):
    """Training was asked of a platform without a trainer."""

    code = "NO_TRAINER"
    http_status = 501


def check() -> None:
    """NoTrainer naming what is missing and what to install."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise NoTrainer(
            f"no trainer installed on this platform: {', '.join(missing)} missing",
            hint="this version of osmosis has no trainer yet; evaluate instead: osmosis eval submit",
            missing=missing,
        )
