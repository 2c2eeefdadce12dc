"""Which run a name means, for every command that takes one of this machine or of the platform.

A local run is meant by its name or path, by the beginning of its name, or as `latest`; what is no local run is asked
for on the platform, by the same, and `platform:NAME` never means a local one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from osmosis.errors import NotFound, OsmosisError
from osmosis.local.request import run_folder

from .context import AppContext

if TYPE_CHECKING:
    from osmosis.client import PlatformClient

PLATFORM = "platform:"
T = TypeVar("T")


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

    def find(self, name: str, *, of_folder: Callable[[Path], T], of_platform: Callable[[PlatformClient, str], T]) -> T:
        """What is made of the run's folder, or of its name on the platform. NotFound says where it was looked for."""
        if name.startswith(PLATFORM):
            return of_platform(self._platform(), name.removeprefix(PLATFORM))
        try:
            folder = run_folder(name, self._ctx.cwd)
        except NotFound as here:
            return self._elsewhere(name, here, of_platform)
        return of_folder(folder)

    def on_platform(self, name: str) -> bool:
        """Whether it has an evaluation of exactly this name; False where it cannot be asked."""
        try:
            return bool(self._platform().evals.get(name).run.name == name)
        except OsmosisError:
            return False

    def _elsewhere(self, name: str, here: NotFound, of_platform: Callable[[PlatformClient, str], T]) -> T:
        try:
            client = self._platform()
            client.evals.get(name)
        except NotFound as there:
            what = f"{here.message}, nor an evaluation of that name on the platform"
            raise NotFound(what, hint=f"{here.hint}, or one of: osmosis eval list") from there
        except OsmosisError as silent:  # not logged in, no workspace, nobody answers
            what = f"{here.message}; nor could the platform be asked: {silent.message}"
            raise NotFound(what, hint=silent.hint or here.hint) from silent
        return of_platform(client, name)

    def _platform(self) -> PlatformClient:
        if self._client is None:
            self._client = self._ctx.client()
        return self._client
