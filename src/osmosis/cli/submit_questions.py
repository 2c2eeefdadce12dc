"""What the platform is asked for every submit. All of it is asked at once, while this machine reads its git repository:
a submit takes as long as the longest of them, not as long as all together.

An answer that is an error is raised where the answer is wanted, as if it had been asked there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Generic, TypeVar

from osmosis.records.config import EvalConfig, TrainingConfig

if TYPE_CHECKING:
    from osmosis.client import PlatformClient
    from osmosis.records.contract.uploads import DatasetEntry
    from osmosis.records.source import SyncState

T = TypeVar("T")


class _Asked(Generic[T]):
    """One question on its way, in a thread that no end of the program waits for."""

    def __init__(self, ask: Callable[[], T]) -> None:
        self._answer: list[T] = []
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._go, args=(ask,), daemon=True)
        self._thread.start()

    def _go(self, ask: Callable[[], T]) -> None:
        try:
            self._answer.append(ask())
        except Exception as error:  # noqa: BLE001 - border of a thread: raised where the answer is wanted
            self._error = error

    def answer(self) -> T:
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._answer[0]


class SubmitQuestions:
    """The answers for one submit. Each of them raises what the call itself would raise."""

    def __init__(self, client: PlatformClient, config: EvalConfig | TrainingConfig) -> None:
        self._sync = _Asked(client.sync.state) if client.scope else None
        self._client = client
        self._secrets = _Asked(client.secrets.all) if config.secret_names() else None
        name = config.experiment.dataset
        self._dataset = _Asked(lambda: client.datasets.get(name))

    @cached_property
    def sync(self) -> SyncState:
        """What it has of the repository."""
        return self._sync.answer() if self._sync else self._client.sync.state()

    @cached_property
    def secrets(self) -> frozenset[str]:
        """The names of those that it has."""
        return frozenset(row.name for row in self._secrets.answer()) if self._secrets else frozenset()

    @property
    def dataset(self) -> DatasetEntry:
        """The dataset of the config."""
        return self._dataset.answer()
