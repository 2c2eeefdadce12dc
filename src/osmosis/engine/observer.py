"""Who watches a run. The engine never prints: it tells an observer, and a silent one is the default."""

from __future__ import annotations

from typing import Protocol

from osmosis.records.report import Report
from osmosis.records.rollout import Rollout


class Observer(Protocol):
    """Hears what happens, on the event loop; must return quickly."""

    def started(self, total: int, done: int) -> None:
        """`total` rollouts will exist, `done` of them did already."""
        ...

    def rollout(self, rollout: Rollout, running: Report | None) -> None:
        """One more is stored; `running` is the figures so far, a few times a second and None in between."""
        ...

    def stage(self, text: str) -> None:
        """Something worth a line: a pause, a stuck rollout, a stop."""
        ...

    def finished(self, report: Report) -> None: ...


class Silent:
    """Hears everything, does nothing."""

    def started(self, total: int, done: int) -> None: ...

    def rollout(self, rollout: Rollout, running: Report | None) -> None: ...

    def stage(self, text: str) -> None: ...

    def finished(self, report: Report) -> None: ...
