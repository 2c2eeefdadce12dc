"""One side of a comparison: a run of this machine, read from its folder, or one of the platform, fetched once.

A local run is meant by its name or path, as ever; what is no local run is asked for on the platform, and
`platform:NAME` never means a local one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from osmosis.cli.context import AppContext
from osmosis.engine.journal import Journal
from osmosis.engine.recorded import RecordedRollouts
from osmosis.errors import NotFound, OsmosisError
from osmosis.local.request import run_folder
from osmosis.metrics.counted import Counted
from osmosis.records.config import Evaluation
from osmosis.records.keys import Key
from osmosis.records.report import Bounds
from osmosis.records.rollout import Message, Rollout

if TYPE_CHECKING:
    from osmosis.client import PlatformClient

PLATFORM = "platform:"


class ComparedRun(Protocol):
    """What a comparison needs of a run."""

    @property
    def name(self) -> str: ...

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


class RunFinder:
    """Finds runs by name; a client of the platform is opened for the first one that is not here."""

    def __init__(self, ctx: AppContext) -> None:
        self._ctx = ctx
        self._client: PlatformClient | None = None

    def __enter__(self) -> RunFinder:
        return self

    def __exit__(self, *_: object) -> None:
        if self._client is not None:
            self._client.close()

    def find(self, name: str) -> ComparedRun:
        """The run with this name. NotFound says where it was looked for."""
        if name.startswith(PLATFORM):
            return self._on_platform(name.removeprefix(PLATFORM))
        try:
            folder = run_folder(name, self._ctx.cwd)
        except NotFound as here:
            return self._elsewhere(name, here)
        return LocalRun(folder)

    def _elsewhere(self, name: str, here: NotFound) -> ComparedRun:
        try:
            return self._on_platform(name)
        except NotFound as there:
            what = f"{here.message}, nor an evaluation of that name on the platform"
            raise NotFound(what, hint=f"{here.hint}, or one of: osmosis eval list") from there
        except OsmosisError as silent:  # not logged in, no workspace, nobody answers
            what = f"{here.message}; nor could the platform be asked: {silent.message}"
            raise NotFound(what, hint=silent.hint or here.hint) from silent

    def _on_platform(self, name: str) -> PlatformRun:
        if self._client is None:
            self._client = self._ctx.client()
        return PlatformRun(self._client, name)
