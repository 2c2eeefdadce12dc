"""One side of a comparison: a run of this machine, read from its folder, or one of the platform, fetched once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from osmosis.cli.run_finder import RunFinder
from osmosis.engine.journal import Journal
from osmosis.engine.recorded import RecordedRollouts
from osmosis.metrics.counted import Counted
from osmosis.records.config import Evaluation
from osmosis.records.keys import Key
from osmosis.records.report import Bounds
from osmosis.records.rollout import Message, Rollout

if TYPE_CHECKING:
    from osmosis.client import PlatformClient


class ComparedRun(Protocol):
    """What a comparison needs of a run."""

    @property
    def name(self) -> str: ...

    @property
    def dataset(self) -> str:
        """Its name, that of the file without the ending."""
        ...

    @property
    def pass_threshold(self) -> float: ...

    @property
    def score_bounds(self) -> Mapping[str, Bounds]: ...

    def outcomes(self) -> Iterable[Counted]:
        """Its rollouts, read once."""
        ...

    def messages(self, key: Key) -> list[Message]:
        """What was said in one of them."""
        ...


class LocalRun:
    """A run in a folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        self.journal = Journal(folder)
        self._recorded: RecordedRollouts | None = None
        plan = self.journal.plan()
        self.dataset = Path(plan.dataset).stem
        self.pass_threshold = plan.pass_threshold
        self.score_bounds: Mapping[str, Bounds] = plan.score_bounds

    def outcomes(self) -> Iterable[Counted]:
        return self.journal.outcomes()

    def messages(self, key: Key) -> list[Message]:
        if self._recorded is None:
            self._recorded = RecordedRollouts(self.journal.folder)
        return self._recorded.read(key).messages


class PlatformRun:
    """An evaluation on the platform."""

    def __init__(self, client: PlatformClient, name: str) -> None:
        seen = client.evals.get(name)
        self.name = seen.run.name
        self.dataset = (seen.dataset.name if seen.dataset else None) or ""
        self._client = client
        self._places: dict[Key, tuple[int, int]] = {}
        wanted = Evaluation.model_validate((seen.config or {}).get("evaluation") or {})
        self.pass_threshold = wanted.pass_threshold
        self.score_bounds: Mapping[str, Bounds] = wanted.score_bounds()

    def outcomes(self) -> Iterable[Rollout]:
        for rollout in self._client.evals.outcomes(self.name):
            self._places[rollout.key] = rollout.place
            yield rollout

    def messages(self, key: Key) -> list[Message]:
        return self._client.evals.rollout(self.name, *self._places[key]).messages


def compared_run(runs: RunFinder, name: str) -> ComparedRun:
    """The run with this name. NotFound says where it was looked for."""

    def on_platform(client: PlatformClient, name: str) -> ComparedRun:
        return PlatformRun(client, name)

    return runs.find(name, of_platform=on_platform, of_folder=LocalRun)
