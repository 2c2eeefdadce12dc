"""Python's garbage collector in a process that lives long: told once, when everything is loaded, what it may skip."""

from __future__ import annotations

import gc


def calm_collector() -> None:
    """What is loaded by now is never garbage, and thousands of rollouts in flight are no reason to look through all of
    them again and again while nothing else may run: that took a twelfth of a job's processor time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 10, 100)
